/** Whom an agent asks for tensors that its workers lack: a real mesh, and workers that say what a test has them say. */
import { once } from 'node:events';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import type { TLSSocket } from 'node:tls';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { offersSchema } from '../../../agent/memory/peers/peer-messages.ts';
import { PeerWeights } from '../../../agent/node/peer-weights.ts';
import { LocalSession, RendezvousRegistry, sessionTlsServerOptions } from '../../../mesh/index.ts';
import { loadOrCreateNetworkKey } from '../../../mesh/network-key.ts';
import type { ModelState, SessionMetadata } from '../../../spec/session-record.ts';
import { metadata, scratchFolder } from '../../mesh/support.ts';

const contents = ['A', 'B', 'C'].map((letter) => letter.repeat(43));
const nothing = '{"held":[]}';
const all = '{"held":[0,1,2]}';

interface Worker {
  node: string;
  /** To who asks what it has. */
  answer: string;
  /** Of its model; absent: it has later stages alone, lists none, and stays in JOIN. */
  state?: ModelState;
  metadata?: Partial<SessionMetadata>;
}

let scratch: Awaited<ReturnType<typeof scratchFolder>>;
let registry: RendezvousRegistry;
let weights: PeerWeights;
let server: Server;
const sessions: (Worker & { session: LocalSession })[] = [];
/** Nodes whose workers were asked. */
const asked: string[] = [];

beforeEach(async () => {
  scratch = await scratchFolder();
  const mesh_folder = join(scratch.path, 'mesh');
  await loadOrCreateNetworkKey(mesh_folder);
  registry = await RendezvousRegistry.open(mesh_folder, { create: true, poll_ms: 50, refresh_min_ms: 10 });
  const own = await LocalSession.join(registry, { ...metadata, role: 'node-agent', node: 'n0' });
  weights = new PeerWeights({
    registry,
    own: () => own.identity,
    node: 'n0',
    site: metadata.site,
    deployment: 'd',
    models: ['m'],
  });
  await weights.listen(join(scratch.path, 'peers.sock'));
  const identityOf = (id: string) => sessions.find(({ session }) => session.id === id)?.session.identity;
  server = createServer(sessionTlsServerOptions(identityOf), (request, response) => {
    const [id] = ((request.socket as TLSSocket).servername as string).split('.');
    const { node, answer } = sessions.find(({ session }) => session.id === id)!;
    asked.push(node);
    request.resume();
    request.once('end', () => response.end(answer));
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
});
afterEach(async () => {
  await weights.close();
  await registry.close();
  server.close();
  sessions.length = 0;
  asked.length = 0;
  await scratch[Symbol.asyncDispose]();
});

async function start(...workers: Worker[]): Promise<void> {
  const { port } = server.address() as AddressInfo;
  for (const worker of workers) {
    const { node, state } = worker;
    const model = { name: 'm', aliases: [], precision: '', context_tokens: 1 };
    const session = await LocalSession.join(registry, {
      ...metadata,
      role: 'device-worker',
      node,
      models: state === undefined ? [] : [{ ...model, state }],
      addresses: [{ host: '127.0.0.1', port }],
      ...worker.metadata,
    });
    if (state === 'serving') await session.update({ lifecycle: 'SERVING' });
    sessions.push({ ...worker, session });
  }
}

/** Nodes that offer something, and what. */
async function offers(): Promise<Record<string, number[]>> {
  const answer = await new Promise<IncomingMessage>((resolve, reject) => {
    httpRequest({ socketPath: join(scratch.path, 'peers.sock'), method: 'POST', path: '/offers' }, resolve)
      .once('error', reject)
      .end(JSON.stringify({ contents }));
  });
  expect(answer.statusCode).toBe(200);
  const { peers } = offersSchema.parse(JSON.parse(Buffer.concat(await answer.toArray()).toString()));
  return Object.fromEntries(peers.map(({ node, held }) => [node, held]));
}

test('workers with later stages alone are asked, and none that is about to load', async () => {
  await start({ node: 'later', answer: all }, { node: 'loading', answer: all, state: 'loading' });
  expect(await offers()).toEqual({ later: [0, 1, 2] });
  expect(asked).toEqual(['later']);
});

test('those of the same model or deployment come first, and others where they lack something', async () => {
  const alike = Array.from({ length: 4 }, (_, at): Worker[] => [
    { node: `model-${at}`, answer: '{"held":[0]}', state: 'serving' },
    { node: `stage-${at}`, answer: nothing, metadata: { deployment: 'd' } },
  ]);
  await start({ node: 'other', answer: '{"held":[1,2]}' }, ...alike.flat());
  expect(await offers()).toEqual({
    'model-0': [0],
    'model-1': [0],
    'model-2': [0],
    'model-3': [0],
    other: [1, 2],
  });
  expect(asked.at(-1)).toBe('other');
  expect(asked).toHaveLength(9);
});

test('nobody else is asked where the first ones have it all', async () => {
  const alike = Array.from(
    { length: 8 },
    (_, at): Worker => ({ node: `n${at}`, answer: all, state: 'serving' }),
  );
  await start({ node: 'other', answer: all }, ...alike);
  expect(Object.keys(await offers())).toHaveLength(8);
  expect(asked).not.toContain('other');
});

test('one of another build, whose answer says nothing here, is one that has nothing', async () => {
  await start(
    { node: 'text', answer: 'no such path', state: 'serving' },
    { node: 'shape', answer: '{"tensors":["A"]}', state: 'serving' },
    { node: 'type', answer: '{"held":["A"]}', state: 'serving' },
    { node: 'more', answer: '{"held":[0],"of":3}', state: 'serving' },
    {
      node: 'gone',
      answer: all,
      state: 'serving',
      metadata: { addresses: [{ host: '127.0.0.1', port: 1 }] },
    },
  );
  expect(await offers()).toEqual({ more: [0] });
  expect(asked.sort()).toEqual(['more', 'shape', 'text', 'type']);
});
