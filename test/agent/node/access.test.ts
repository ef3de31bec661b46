/** What members of a mesh may ask of a node agent that belongs to another provider. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Pool } from 'undici';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { LaunchProvider } from '../../../agent/node/launch-provider.ts';
import {
  type CurrentDelegation,
  LocalSession,
  pinnedConnector,
  RendezvousRegistry,
  SessionIdentity,
  sessionOrigin,
} from '../../../mesh/index.ts';
import { sealRecord } from '../../../mesh/record-codec.ts';
import type { HpcserveError } from '../../../spec/errors/error.ts';
import type { LaunchSpec } from '../../../spec/launch.ts';
import type { SessionRecord, SessionRole } from '../../../spec/session-record.ts';
import { launchFiles } from '../../../spec/state-layout.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { type TestProvider, testProvider } from '../../mesh/providers.ts';
import { eventually, metadata } from '../../mesh/support.ts';
import { fixtureUnit, type RunningAgent, Site } from '../support.ts';

let site: Site;
let mallory: TestProvider;
const closing: (() => Promise<unknown>)[] = [];

beforeEach(async () => {
  site = await Site.open();
  mkdirSync(join(site.folder, 'elsewhere'));
  // The name is that of the site's own provider.
  mallory = testProvider(join(site.folder, 'elsewhere'), site.provider.name);
});
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
  await site[Symbol.asyncDispose]();
});

interface Answer {
  status: number;
  text: string;
}

/** Asks sessions as a member with a session of its own. */
async function member(
  delegation?: CurrentDelegation,
  role: SessionRole = 'gateway',
  launch_id?: string,
): Promise<(record: SessionRecord, method: 'GET' | 'POST', path: string) => Promise<Answer>> {
  const registry = await RendezvousRegistry.open(site.mesh_folder, { create: false, poll_ms: 50 });
  closing.push(() => registry.close());
  const own = await LocalSession.join(
    registry,
    {
      ...metadata,
      provider: site.provider.name,
      role,
      addresses: [],
      ...(launch_id === undefined ? {} : { launch_id }),
    },
    undefined,
    delegation,
  );
  return async (record, method, path) => {
    const pool = new Pool(sessionOrigin(record), { connect: pinnedConnector(record, own.identity) });
    closing.push(() => pool.destroy());
    const answer = await pool.request({ method, path, ...(method === 'POST' ? { body: question } : {}) });
    return { status: answer.statusCode, text: await answer.body.text() };
  };
}

const question = JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'hi' }] });
const chat = '/v1/chat/completions';
const operations = [
  ['POST', agentPaths.drain],
  ['POST', agentPaths.move],
  ['POST', agentPaths.refactor],
  ['GET', agentPaths.state],
  ['GET', agentPaths.device],
  ['GET', agentPaths.sharing],
] as const;

async function serve(launch: Partial<LaunchSpec> = {}): Promise<{
  agent: RunningAgent;
  engine: SessionRecord;
  node: SessionRecord;
}> {
  const agent = await site.start([fixtureUnit('m')], launch);
  const engine = await site.serving('m');
  const node = await site.session(
    ({ metadata, lifecycle }) => metadata.role === 'node-agent' && lifecycle === 'SERVING',
  );
  return { agent, engine, node };
}

describe('a member that is another provider, or none', () => {
  test.each<[string, () => CurrentDelegation | undefined]>([
    ['with a key of its own and the same name', () => mallory.gateway],
    ['without any proof', () => undefined],
  ])('%s operates nothing, and has answers', async (_what, delegation) => {
    const { agent, engine, node } = await serve();
    const ask = await member(delegation());
    for (const [method, path] of operations)
      for (const session of [engine, node]) {
        const { status, text } = await ask(session, method, path);
        expect(`${status} ${path}`).toBe(`403 ${path}`);
        expect(JSON.parse(text)).toMatchObject({ error: { code: 'E_AGENT_ACCESS' } });
        expect(text).toContain('may not operate this session');
      }
    expect((await ask(engine, 'POST', chat)).status).toBe(200);
    expect(agent.process.exitCode).toBeNull();
    expect(site.registry.get(engine.session_id)?.lifecycle).toBe('SERVING');
    // The provider's own gateway does.
    const own = site.pool(node);
    expect((await own.request({ method: 'GET', path: agentPaths.state })).statusCode).toBe(200);
    expect((await own.request({ method: 'POST', path: agentPaths.drain })).statusCode).toBe(202);
    expect((await agent.ended).code).toBe(0);
  });

  test('brings no answers that have begun, and neither does a gateway', async () => {
    const { engine } = await serve();
    const agentOf = (provider: TestProvider, id: string) =>
      member(() => provider.launch(id), 'node-agent', id);
    const strange = await (await agentOf(mallory, 'e'.repeat(16)))(engine, 'POST', agentPaths.kv);
    expect(strange.status).toBe(403);
    expect(strange.text).toContain('may not exchange this session');
    const gateway = await site.pool(engine).request({ method: 'POST', path: agentPaths.kv });
    expect(gateway.statusCode).toBe(403);
    expect(await gateway.body.text()).toContain('only node agents bring answers that have begun');
    // An agent of the same provider may; this engine is not ours, and has nothing to do with it.
    const own = await (await agentOf(site.provider, 'd'.repeat(16)))(engine, 'POST', agentPaths.kv);
    expect(own.status).toBe(404);
  });

  test('has a record of a gateway refused that an agent’s delegation made', async () => {
    const { engine } = await serve();
    const launch_id = 'f'.repeat(16);
    const job = site.provider.launch(launch_id);
    // As what it is, it is a job of the same provider, and jobs operate nothing.
    const ask = await member(() => job, 'node-agent', launch_id);
    const refused = await ask(engine, 'POST', agentPaths.drain);
    expect(refused.status).toBe(403);
    expect(refused.text).toContain('only gateways operate sessions');
    const identity = await SessionIdentity.create();
    const record: SessionRecord = {
      ...site.gateway.record,
      session_id: identity.session_id,
      public_key: Buffer.from(identity.public_key).toString('base64'),
    };
    const credential = job.certify(identity.public_key);
    const file = join(site.mesh_folder, 'sessions', `${identity.session_id}.rec`);
    writeFileSync(file, sealRecord(record, identity, site.registry.network_key, credential));
    await eventually(() => site.registry.status().rejected.forged === 1, 'the record to be seen');
    expect(site.registry.get(identity.session_id)).toBeUndefined();
  });

  test('operates where the provider lists it', async () => {
    const { agent, node } = await serve({ operators: [mallory.id] });
    const unlisted = testProvider(site.folder, 'carol@local');
    expect((await (await member(unlisted.gateway))(node, 'GET', agentPaths.state)).status).toBe(403);
    const ask = await member(mallory.gateway);
    expect((await ask(node, 'GET', agentPaths.state)).status).toBe(200);
    expect((await ask(node, 'POST', agentPaths.drain)).status).toBe(202);
    expect((await agent.ended).code).toBe(0);
  });

  test('uses only what it is listed for, where users are listed', async () => {
    const carol = testProvider(site.folder, 'carol@local');
    const { engine } = await serve({ users: [carol.id] });
    for (const [delegation, status] of [
      [undefined, 403],
      [mallory.gateway, 403],
      [carol.gateway, 200],
      [site.provider.gateway, 200],
    ] as const) {
      const ask = await member(delegation);
      const answer = await ask(engine, 'POST', chat);
      expect(answer.status).toBe(status);
      if (status === 403) {
        expect(answer.text).toContain('may not use this session');
        // Nor does it learn what is computed.
        expect((await ask(engine, 'GET', agentPaths.watch)).status).toBe(403);
        expect((await ask(engine, 'GET', agentPaths.tensors)).status).toBe(403);
      }
      expect((await (await member(carol.gateway))(engine, 'GET', agentPaths.state)).status).toBe(403);
    }
  });
});

describe('what a job proves its provider with', () => {
  test('is in the records of all its sessions, and its state says where it is missing', async () => {
    const { agent, engine, node } = await serve();
    expect([engine.provider_id, node.provider_id]).toEqual([site.provider.id, site.provider.id]);
    expect((await agent.state())?.notices).toBeUndefined();
  });

  test('counts only for its launch and while it lasts, and is taken anew when it is renewed', async () => {
    const launch = { launch_id: '0123456789abcdef', launch_folder: join(site.folder, 'launch') };
    const file = join(launch.launch_folder, launchFiles.delegation);
    mkdirSync(launch.launch_folder);
    const troubles: (HpcserveError | undefined)[] = [];
    const write = (text: string): void => writeFileSync(file, text, { mode: 0o600 });
    const provider = await LaunchProvider.open({
      launch,
      onRenewed: () => undefined,
      onTrouble: (error) => troubles.push(error),
    });
    closing.push(async () => provider.close());
    expect(provider.delegation).toBeUndefined();
    expect(troubles.at(-1)?.toText()).toContain('nothing proves who provides this job');

    write(site.provider.launch('fedcba9876543210').toText());
    expect(await provider.look()).toBe(false);
    expect(provider.delegation).toBeUndefined();
    expect(troubles.at(-1)?.toText()).toContain('it is for launch fedcba9876543210');

    write(site.provider.launch(launch.launch_id, 3600).toText());
    expect(await provider.look()).toBe(true);
    expect(provider.delegation?.provider_id).toBe(site.provider.id);
    expect(troubles.at(-1)?.toText()).toContain('ends at');

    write(site.provider.launch(launch.launch_id, 86_400).toText());
    expect(await provider.look()).toBe(true);
    expect(await provider.look()).toBe(false);
    expect(troubles.at(-1)).toBeUndefined();

    // A file that is damaged later takes nothing away.
    write('{');
    expect(await provider.look()).toBe(false);
    expect(provider.delegation?.provider_id).toBe(site.provider.id);
  });

  test('counts seconds after it is there, where a shared filesystem shows it late', async () => {
    const launch = { launch_id: '0123456789abcdef', launch_folder: join(site.folder, 'launch') };
    mkdirSync(launch.launch_folder);
    let published = 0;
    const provider = await LaunchProvider.open({
      launch,
      onRenewed: () => published++,
      onTrouble: () => undefined,
    });
    closing.push(async () => provider.close());
    const text = site.provider.launch(launch.launch_id).toText();
    writeFileSync(join(launch.launch_folder, launchFiles.delegation), text, { mode: 0o600 });
    await eventually(() => published > 0, 'it to be read again', 30_000);
    expect(provider.delegation?.provider_id).toBe(site.provider.id);
  }, 45_000);
});
