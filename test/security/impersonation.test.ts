/**
 * A member of the mesh (it has network.key and a way to one gateway's port for members, and nothing else) bears the
 * name of a provider that others trust.
 */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { KeyStore } from '../../ledger/index.ts';
import { MeshPeer, RendezvousRegistry } from '../../mesh/index.ts';
import { chatAnswer, json, type Stage, startStage, TestSession, until } from '../gateway/support.ts';
import { type TestProvider, testProvider } from '../mesh/providers.ts';
import { eventually } from '../mesh/support.ts';

const network_key = new Uint8Array(32).fill(4);
const chat = { model: 'tiny', messages: [{ role: 'user' as const, content: 'a secret' }] };
const path = '/v1/chat/completions';

let folder: string;
let stage: Stage;
let honest: TestSession;
let mallory: TestProvider;
const closing: (() => Promise<unknown> | unknown)[] = [];

function meshFolder(name: string): string {
  const mesh_folder = join(folder, name);
  mkdirSync(mesh_folder, { mode: 0o700 });
  writeFileSync(join(mesh_folder, 'network.key'), network_key, { mode: 0o600 });
  return mesh_folder;
}

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-impersonation-test-'));
  closing.push(() => rmSync(folder, { recursive: true, force: true }));
  const mesh_folder = meshFolder('mesh');
  mallory = testProvider(folder, 'tester@test');
  const mesh = { bootstrap: [], relay: [], host: '127.0.0.1' };
  stage = await startStage({}, { mesh_folder, mesh });
  closing.push(() => stage.close());
  honest = await stage.session(json(chatAnswer), { node: 'honest', metadata: { provider: 'alice@test' } });
});
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

interface Row {
  session_id: string;
  reachable: boolean;
  provider: string;
  provider_id?: string;
}

/** A replica that the member puts into the mesh over TCP, once the gateway can reach it. */
async function impostor(
  prove?: (launch_id: string) => ReturnType<TestProvider['launch']>,
): Promise<TestSession> {
  const own = await RendezvousRegistry.open(meshFolder('elsewhere'), { create: true, poll_ms: 50 });
  closing.push(() => own.close());
  const gossip = await eventually(async () => {
    const { mesh } = (await (await stage.admin('/mesh/table')).json()) as {
      mesh: { gossip?: { addresses: string[] } };
    };
    return mesh.gossip?.addresses[0];
  }, 'the gossip of the gateway');
  const forged = await TestSession.start(
    own,
    json(chatAnswer),
    { node: 'forged', metadata: { provider: 'alice@test' } },
    prove && ((_name, launch_id) => prove(launch_id)),
  );
  closing.push(() => forged.stop());
  const peer = await MeshPeer.join(own, {
    listen: { host: '127.0.0.1', ports: [0, 0] },
    announce: ['127.0.0.1'],
    bootstrap: [gossip.replace(/^\/ip4\/(.*)\/tcp\//, '$1:')],
    relay: [],
    relays: false,
    onTrouble: () => undefined,
  });
  closing.push(() => peer.close());
  await until(async () => {
    const { sessions } = (await (await stage.admin('/mesh/table')).json()) as { sessions: Row[] };
    return sessions.some(({ session_id, reachable }) => session_id === forged.own.id && reachable);
  }, 'the forged replica to be reachable');
  return forged;
}

async function ask(key: string, headers: Record<string, string> = {}): Promise<Response> {
  return fetch(stage.url + path, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', ...headers },
    body: JSON.stringify(chat),
  });
}

describe('a member that bears the name of a trusted provider', () => {
  it.each<[string, boolean]>([
    ['with a key of its own', true],
    ['without any proof', false],
  ])('%s gets no request of a key that trusts that provider', async (_what, proves) => {
    const { key } = await stage.newKey({ providers: ['alice@test'] });
    const delegate = testProvider(meshFolder('keys'), 'alice@test');
    const forged = await impostor(proves ? (launch_id) => delegate.launch(launch_id) : undefined);
    for (let count = 0; count < 8; count++) {
      const answer = await ask(key);
      expect(answer.headers.get('x-hpcserve-node')).toBe('honest');
      expect(answer.headers.get('x-hpcserve-provider-key')).toBe(stage.fingerprint('alice@test'));
      await answer.text();
    }
    // Nor when nobody else is there.
    await honest.stop();
    await until(async () => {
      const { sessions } = (await (await stage.admin('/mesh/table')).json()) as { sessions: Row[] };
      return sessions.length === 1;
    }, 'the honest replica to be gone');
    const answer = await ask(key);
    expect(answer.status).toBe(404);
    expect(await answer.text()).toContain('providers excludes provider alice@test');
    expect(forged.requests).toEqual([]);
    // Whoever trusts everybody is told whose answer it is.
    const open = await ask(stage.key);
    expect(open.headers.get('x-hpcserve-provider-key')).toBe(proves ? delegate.id : 'unproven');
  });

  it('makes the name lead nowhere: both fingerprints are said', async () => {
    const delegate = testProvider(meshFolder('keys'), 'alice@test');
    await impostor((launch_id) => delegate.launch(launch_id));
    const both = [stage.fingerprint('alice@test'), delegate.id].sort().join(', ');
    const made = await stage.admin('/hpcserve/v1/keys', {
      method: 'POST',
      body: { name: 'x', settings: { providers: ['alice@test'] } },
    });
    expect(made.status).toBe(400);
    const text = await made.text();
    expect(text).toContain('2 providers call themselves alice@test');
    expect(text).toContain(both);
    const asked = await ask(stage.key, { 'x-hpcserve-providers': 'alice@test' });
    expect(asked.status).toBe(400);
    expect(await asked.text()).toContain(both);
    // By fingerprint, both go where they are meant to.
    for (const [id, node] of [
      [stage.fingerprint('alice@test'), 'honest'],
      [delegate.id, 'forged'],
    ] as const)
      expect((await ask(stage.key, { 'x-hpcserve-providers': id })).headers.get('x-hpcserve-node')).toBe(
        node,
      );
  });
});

describe('an API key', () => {
  it('keeps the fingerprint of the provider that a name led to', async () => {
    const { id } = await stage.newKey({ providers: ['alice@test'] });
    const alice = stage.fingerprint('alice@test');
    const { keys } = (await (await stage.admin('/hpcserve/v1/keys')).json()) as {
      keys: { id: string; settings: object }[];
    };
    expect(keys.find((one) => one.id === id)?.settings).toEqual({ providers: [alice] });
    for (const [providers, words] of [
      [['nobody@test'], 'no provider of the mesh calls itself nobody@test now'],
      [['*@test'], `alice@test ${alice}`],
      [['a b'], 'is no provider'],
    ] as const) {
      const answer = await stage.admin(`/hpcserve/v1/keys/${id}`, { method: 'PATCH', body: { providers } });
      expect(answer.status).toBe(400);
      expect(await answer.text()).toContain(words);
    }
    const stays = await stage.admin(`/hpcserve/v1/keys/${id}`, {
      method: 'PATCH',
      body: { providers: [mallory.id, 'alice@test', alice] },
    });
    expect(await stays.json()).toMatchObject({ settings: { providers: [mallory.id, alice] } });
  });

  it('from before providers had keys trusts its own provider by key, and asks for the others', async () => {
    const keys_folder = join(folder, 'keys-of-before');
    const store = await KeyStore.open(keys_folder);
    const made = (providers: string[]): string => store.create('old', { providers }).secret;
    const [own, other, both] = [['tester@test'], ['alice@test'], ['tester@test', '*@test']].map(made);
    store.close();
    const { key_id: _, ...second } = await startStage({}, { keys_folder });
    closing.push(() => second.close());
    const replica = await second.session(json(chatAnswer), { node: 'own' });
    const asked = async (key: string | undefined): Promise<string> => {
      const answer = await second.post(path, chat, { authorization: `Bearer ${key}` });
      const { error } = (await answer.json()) as { error?: { message: string; code: string } };
      return answer.headers.get('x-hpcserve-node') ?? `${answer.status} ${error?.code} ${error?.message}`;
    };
    expect(await asked(own)).toBe('own');
    expect(await asked(both)).toBe('own');
    expect(await asked(other)).toMatch(/^403 E_KEY_PROVIDERS this key trusts alice@test, and that is no/);
    expect(replica.requests).toHaveLength(2);
    const { keys } = (await (await second.admin('/hpcserve/v1/keys')).json()) as {
      keys: { settings: { providers?: string[] } }[];
    };
    // Nothing is taken away: names stay until they are given anew.
    expect(keys.flatMap(({ settings }) => (settings.providers ? [settings.providers] : []))).toEqual(
      expect.arrayContaining([
        [second.fingerprint('tester@test')],
        ['alice@test'],
        [second.fingerprint('tester@test'), '*@test'],
      ]),
    );
    expect(second.logged.join('\n')).toContain('name them anew with hpcserve keys set');
  });
});

describe('a replica', () => {
  it('whose delegation is over is trusted by nobody, and serves who trusts everybody', async () => {
    const { key } = await stage.newKey({ providers: ['alice@test'] });
    const alice = testProvider(stage.folder, 'alice@test');
    await honest.stop();
    await until(async () => (await ask(stage.key)).status === 404, 'the honest replica to be gone');
    const over = await TestSession.start(
      stage.registry,
      json(chatAnswer),
      { node: 'over', metadata: { provider: 'alice@test' } },
      (_name, launch_id) => alice.launch(launch_id, 3),
    );
    closing.push(() => over.stop());
    await until(async () => (await ask(key)).headers.get('x-hpcserve-node') === 'over', 'it to serve');
    await until(async () => (await ask(key)).status === 404, 'its delegation to be over');
    expect((await ask(stage.key)).headers.get('x-hpcserve-node')).toBe('over');
  });
});
