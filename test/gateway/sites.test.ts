/** Gateways of two sites in one mesh, with nothing in common but the network key. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, it } from 'vitest';
import { MeshPeer } from '../../mesh/index.ts';
import { eventually } from '../mesh/support.ts';
import { chatAnswer, type Stage, startStage } from './support.ts';

const closing: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function site(bootstrap: string[]): Promise<Stage> {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-sites-test-'));
  closing.push(() => rmSync(folder, { recursive: true, force: true }));
  const mesh_folder = join(folder, 'mesh');
  mkdirSync(mesh_folder, { mode: 0o700 });
  writeFileSync(join(mesh_folder, 'network.key'), new Uint8Array(32).fill(4), { mode: 0o600 });
  const stage = await startStage({}, { mesh_folder, mesh: { bootstrap, relay: [], host: '127.0.0.1' } });
  closing.push(() => stage.close());
  return stage;
}

interface Table {
  sessions: {
    session_id: string;
    reachable: boolean;
    sources: string[];
    heard_ms_ago?: number;
    load?: object;
  }[];
  gateways: { session_id: string }[];
  mesh: { gossip?: { addresses: string[]; members: number; connected: number } };
}
const tableOf = async ({ url, key }: Stage): Promise<Table> => {
  const answer = await fetch(`${url}/mesh/table`, { headers: { authorization: `Bearer ${key}` } });
  return (await answer.json()) as Table;
};

it('answer with each other’s replicas, also where those cannot be connected to, and show how they know', async () => {
  const home = await site([]);
  const gossip = await eventually(async () => (await tableOf(home)).mesh.gossip, 'the gossip at home');
  const away = await site([gossip.addresses[0]!.replace(/^\/ip4\/(.*)\/tcp\//, '$1:')]);

  // A node at home: its agent's part is played by the harness.
  const text = 'x'.repeat(400_000); // beyond what relays of libp2p carry unless told otherwise
  const replica = await home.session((_request, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    const { choices, ...rest } = chatAnswer;
    const [choice] = choices;
    response.end(
      JSON.stringify({ ...rest, choices: [{ ...choice, message: { role: 'assistant', content: text } }] }),
    );
  });
  const { port } = replica.own.record.metadata.addresses[0]!;
  await replica.own.update({ metadata: { addresses: [{ host: '127.0.0.1', port: 1 }] } });
  const peer = await MeshPeer.join(home.registry, {
    listen: { host: '127.0.0.1', ports: [0, 0] },
    announce: ['127.0.0.1'],
    bootstrap: [],
    relay: [],
    relays: false,
    tunnelTarget: (id) => (id === replica.own.id ? { host: '127.0.0.1', port } : undefined),
    onTrouble: () => undefined,
  });
  closing.push(() => peer.close());
  peer.setLoad(replica.own.id, { running: 1, waiting: 0, max_sequences: 4 });

  const row = await eventually(async () => {
    const { sessions } = await tableOf(away);
    return sessions.find(({ session_id, reachable }) => session_id === replica.own.id && reachable);
  }, 'the replica at the other site');
  expect(row.sources).toEqual(['gossip']);
  const answer = await away.post('/v1/chat/completions', {
    model: 'tiny',
    messages: [{ role: 'user', content: 'hi' }],
  });
  expect(answer.status).toBe(200);
  expect(answer.headers.get('x-hpcserve-session')).toBe(replica.own.id);
  const body = (await answer.json()) as { choices: { message: { content: string } }[] };
  expect(body.choices[0]!.message.content).toBe(text);

  await eventually(async () => {
    const { sessions } = await tableOf(away);
    return sessions.some(({ session_id, load }) => session_id === replica.own.id && load !== undefined);
  }, 'its load');
  const { gateways, mesh } = await tableOf(away);
  expect(gateways).toHaveLength(2);
  expect(mesh.gossip).toMatchObject({ members: 3 });
  const metrics = await (await away.admin('/metrics')).text();
  expect(metrics).toContain('hpcserve_mesh_members{state="known"} 3');
  expect(metrics).toMatch(/hpcserve_mesh_messages_total\{kind="received"\} [1-9]/);
});
