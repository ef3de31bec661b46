/** Which agents one with stages of a pipeline asks, and the sockets by which its workers reach theirs. */
import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { type AddressInfo, createConnection, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { createServer as createTlsServer } from 'node:tls';
import pino from 'pino';
import { expect, test } from 'vitest';
import { PipelineAgents } from '../../../agent/node/pipeline-agents.ts';
import { stageSocket } from '../../../agent/node/stage-place.ts';
import { StageTunnels } from '../../../agent/node/stage-tunnels.ts';
import {
  LocalSession,
  RendezvousRegistry,
  SessionIdentity,
  sessionTlsServerOptions,
} from '../../../mesh/index.ts';
import { loadOrCreateNetworkKey } from '../../../mesh/network-key.ts';
import type { SessionMetadata } from '../../../spec/session-record.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { type TestProvider, testProvider } from '../../mesh/providers.ts';
import { metadata, recordOf, scratchFolder } from '../../mesh/support.ts';

const launch_id = '00112233445566aa';

/** A mesh without agents. */
async function mesh(folder: string): Promise<RendezvousRegistry> {
  const mesh_folder = join(folder, 'mesh');
  await loadOrCreateNetworkKey(mesh_folder);
  return await RendezvousRegistry.open(mesh_folder, {
    create: true,
    poll_ms: 50,
    refresh_min_ms: 10,
  });
}

/** The record of an agent. */
async function agentOf(
  registry: RendezvousRegistry,
  provider: TestProvider,
  more: Partial<SessionMetadata>,
): Promise<LocalSession> {
  const delegation = provider.launch(more.launch_id ?? launch_id);
  const agent: SessionMetadata = {
    ...metadata,
    role: 'node-agent',
    deployment: 'd',
    launch_id,
    ...more,
  };
  const session = await LocalSession.join(registry, agent, undefined, () => delegation);
  await session.update({ lifecycle: 'SERVING' });
  return session;
}

test('agents of another provider are not asked, whatever launch their records name, nor those whose place another has', async () => {
  await using scratch = await scratchFolder();
  const registry = await mesh(scratch.path);
  try {
    const [ours, theirs] = ['someone@here', 'other@there'].map((name) => testProvider(scratch.path, name));
    // Of jobs that are over: in the place of this agent, and of a peer.
    await agentOf(registry, ours!, { node_index: 0 });
    await agentOf(registry, ours!, { node_index: 1 });
    await new Promise((resolve) => setTimeout(resolve, 5));
    const own = await agentOf(registry, ours!, { node_index: 0 });
    const peer = await agentOf(registry, ours!, { node_index: 1 });
    const stranger = await agentOf(registry, theirs!, { node_index: 2 });
    const elsewhere = await agentOf(registry, ours!, {
      node_index: 3,
      launch_id: '00112233445566bb',
    });
    const options = {
      registry,
      own: () => own.identity,
      node_index: 0,
      launch: { launch_id, deployment: 'd' },
    };
    const agents = new PipelineAgents({ ...options, provider: () => ours!.id });
    expect(agents.others().map(({ session_id }) => session_id)).toEqual([peer.id]);
    expect(
      [peer, stranger, elsewhere].map(({ record }) => agents.has(registry.get(record.session_id)!)),
    ).toEqual([true, false, false]);
    // As long as nothing proves whose it is itself, it asks nobody.
    expect(new PipelineAgents({ ...options, provider: () => undefined }).others()).toEqual([]);
  } finally {
    await registry.close();
  }
});

/** The sockets of an agent of the first of two nodes. */
async function withTunnels(
  check: (
    tunnels: StageTunnels,
    folder: string,
    around: { registry: RendezvousRegistry; provider: TestProvider },
  ) => Promise<void>,
): Promise<void> {
  await using scratch = await scratchFolder();
  const registry = await mesh(scratch.path);
  const provider = testProvider(scratch.path, 'someone@here');
  const own = await agentOf(registry, provider, { node_index: 0 });
  const agents = new PipelineAgents({
    registry,
    own: () => own.identity,
    node_index: 0,
    launch: { launch_id, deployment: 'd' },
    provider: () => provider.id,
  });
  const folder = join(scratch.path, 'run');
  mkdirSync(folder);
  const tunnels = new StageTunnels({ agents, node_index: 0, folder, log: pino({ enabled: false }) });
  try {
    await check(tunnels, folder, { registry, provider });
  } finally {
    tunnels.closeAll();
    await registry.close();
  }
}

/** Whether anybody listens there. */
const listens = (path: string): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = createConnection(path);
    socket.once('error', () => resolve(false));
    socket.once('connect', () => {
      socket.destroy();
      resolve(true);
    });
  });

test('a ring that is over before its sockets are there leaves none', async () => {
  await withTunnels(async (tunnels, folder) => {
    await tunnels.open('u', 1, [0, 1]);
    expect(await listens(stageSocket(folder, 'u', 1, 1))).toBe(true);
    const opening = tunnels.open('u', 2, [0, 1]);
    tunnels.close('u', 2);
    await opening;
    expect(await listens(stageSocket(folder, 'u', 1, 2))).toBe(false);
    expect(tunnels.has('u', 2)).toBe(false);
    expect(await listens(stageSocket(folder, 'u', 1, 1))).toBe(true);
  });
});

test('a ring of which one socket cannot be opened leaves none of the others', async () => {
  await withTunnels(async (tunnels, folder) => {
    // A folder has the place of the second one.
    mkdirSync(join(stageSocket(folder, 'u', 3, 1), 'in the way'), {
      recursive: true,
    });
    await expect(tunnels.open('u', 1, [0, 1, 0, 1])).rejects.toThrow();
    expect(existsSync(stageSocket(folder, 'u', 1, 1)), readdirSync(folder).join()).toBe(false);
    expect(tunnels.has('u', 1)).toBe(false);
  });
});

/** What a stage of this node, whose first stage is elsewhere, gets by its tunnel; resolves as the node may leave. */
async function leftAfter_ms(bytes: number, every_ms: number, times: number): Promise<number> {
  let left_ms = 0;
  await withTunnels(async (tunnels, folder, { registry, provider }) => {
    const other = await agentOf(registry, provider, { node_index: 1 });
    await tunnels.open('u', undefined, [1, 0]);
    const worker = createServer((socket) => socket.resume()).listen(stageSocket(folder, 'u', 1));
    const between = join(folder, 'between.sock');
    const served = createServer().listen(between);
    const came = once(served, 'connection') as Promise<[Socket]>;
    const far = createConnection(between);
    const [near] = await came;
    const request = { url: `${agentPaths.stages}/u/1`, headers: { upgrade: 'hpcserve-stage' } };
    const peer = registry.get(other.id)!;
    expect(tunnels.accept(request as IncomingMessage, near, Buffer.alloc(0), peer)).toBe(true);
    await once(far, 'data');
    const began_ms = performance.now();
    const idle = tunnels.untilIdle(10_000).then(() => {
      left_ms = performance.now() - began_ms;
    });
    for (let at = 0; at < times; at++) {
      far.write(Buffer.alloc(bytes));
      await delay(every_ms);
    }
    await idle;
    for (const end of [far, near]) end.destroy();
    for (const server of [worker, served]) server.close();
  });
  return left_ms;
}

test('a node does not leave while batches come that lie elsewhere, and does while its neighbour is only alive', async () => {
  // What says where a batch lies in memory that the fabric wrote has 72 bytes at least.
  expect(await leftAfter_ms(72, 400, 10)).toBeGreaterThan(4000);
  expect(await leftAfter_ms(40, 1000, 4)).toBeLessThan(4000);
}, 30_000);

test('an agent that takes the connection and says nothing is given up', { timeout: 20_000 }, async () => {
  await using scratch = await scratchFolder();
  const registry = await mesh(scratch.path);
  const silent = await SessionIdentity.create();
  const server = createTlsServer(sessionTlsServerOptions(() => silent));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  try {
    const provider = testProvider(scratch.path, 'someone@here');
    const own = await agentOf(registry, provider, { node_index: 0 });
    const options = {
      registry,
      own: () => own.identity,
      node_index: 0,
      launch: { launch_id, deployment: 'd' },
    };
    const agents = new PipelineAgents({ ...options, provider: () => provider.id });
    const addresses = [{ host: '127.0.0.1', port: (server.address() as AddressInfo).port }];
    const record = recordOf(silent, { metadata: { ...metadata, addresses } });
    await expect(agents.ask(record, '/', 'p')).rejects.toThrow('it said nothing within 5000 ms');
  } finally {
    server.close();
    await registry.close();
  }
});
