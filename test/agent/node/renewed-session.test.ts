/** The stages of two agents reach each other whatever the mesh thought of one of them meanwhile. */
import { mkdirSync } from 'node:fs';
import { createConnection, createServer, type Server } from 'node:net';
import { join } from 'node:path';
import pino from 'pino';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { PeerPools } from '../../../agent/node/peer-pools.ts';
import { PipelineAgents } from '../../../agent/node/pipeline-agents.ts';
import { SessionServer } from '../../../agent/node/session-server.ts';
import { stageSocket } from '../../../agent/node/stage-place.ts';
import { StageTunnels } from '../../../agent/node/stage-tunnels.ts';
import { LocalSession, RendezvousRegistry, SessionIdentity } from '../../../mesh/index.ts';
import { loadOrCreateNetworkKey } from '../../../mesh/network-key.ts';
import { testProvider } from '../../mesh/providers.ts';
import { eventually, metadata, scratchFolder } from '../../mesh/support.ts';

const launch_id = '00112233445566aa';
const unit = 'cut-0';

let scratch: Awaited<ReturnType<typeof scratchFolder>>;
let mesh_folder: string;
const opened: Agent[] = [];

beforeEach(async () => {
  scratch = await scratchFolder();
  mesh_folder = join(scratch.path, 'mesh');
  await loadOrCreateNetworkKey(mesh_folder);
});
afterEach(async () => {
  for (const agent of opened.splice(0)) await agent.close();
  await scratch[Symbol.asyncDispose]();
});

/** An agent of one of the two nodes of a launch, with a stage that greets whoever reaches it. */
class Agent {
  readonly registry: RendezvousRegistry;
  readonly lines: string[] = [];
  session!: LocalSession;
  readonly #folder: string;
  readonly #server: SessionServer;
  readonly #tunnels: StageTunnels;
  readonly #stage: Server;
  readonly #pools: PeerPools;

  private constructor(registry: RendezvousRegistry, node_index: number, provider_id: string) {
    this.registry = registry;
    this.#folder = join(scratch.path, `n${node_index}`);
    mkdirSync(this.#folder);
    this.#pools = new PeerPools(registry, () => this.session.identity, 1);
    const agents = new PipelineAgents({
      registry,
      own: () => this.session.identity,
      node_index,
      launch: { launch_id, deployment: 'd' },
      provider: () => provider_id,
    });
    const log = pino({}, { write: (line: string) => this.lines.push(line) });
    this.#tunnels = new StageTunnels({ agents, node_index, folder: this.#folder, log });
    this.#server = new SessionServer({
      registry,
      identityOf: (id) => (id === this.session.id ? this.session.identity : undefined),
      handle: (_id, _request, response) => response.writeHead(204).end(),
      upgrade: (request, socket, head, peer) => this.#tunnels.accept(request, socket, head, peer),
    });
    this.#stage = createServer((socket) => {
      socket.on('error', () => socket.destroy());
      socket.write('greeting');
    });
  }

  static async open(node_index: number): Promise<Agent> {
    const registry = await RendezvousRegistry.open(mesh_folder, {
      create: true,
      poll_ms: 50,
      refresh_min_ms: 10,
    });
    const provider = testProvider(scratch.path, 'someone@here');
    const agent = new Agent(registry, node_index, provider.id);
    opened.push(agent);
    const port = await agent.#server.listen('127.0.0.1', undefined);
    const delegation = provider.launch(launch_id);
    agent.session = await LocalSession.join(
      registry,
      {
        ...metadata,
        ...{ role: 'node-agent', deployment: 'd', launch_id, node: `n${node_index}`, node_index },
        addresses: [{ host: '127.0.0.1', port }],
      },
      undefined,
      () => delegation,
    );
    await agent.session.update({ lifecycle: 'SERVING' });
    await agent.#tunnels.open(unit, undefined, [0, 1]);
    agent.#stage.listen(stageSocket(agent.#folder, unit, node_index));
    return agent;
  }

  /** Whether its worker gets the greeting of the stage on the other node. */
  reaches(stage: number): Promise<boolean> {
    return new Promise((resolve) => {
      const socket = createConnection(stageSocket(this.#folder, unit, stage));
      socket.once('data', () => {
        socket.destroy();
        resolve(true);
      });
      socket.once('error', () => undefined); // 'close' follows
      socket.once('close', () => resolve(false));
    });
  }

  /** As tensors, keys and values of a peer are asked for. */
  async isAnsweredBy(peer: Agent): Promise<boolean> {
    const pool = await this.#pools.to(this.registry.get(peer.session.id)!);
    const { statusCode, body } = await pool.request({ method: 'GET', path: '/' });
    await body.dump();
    return statusCode === 204;
  }

  async close(): Promise<void> {
    await this.#pools.close();
    this.#tunnels.closeAll();
    this.#stage.close();
    await this.#server.close();
    await this.registry.close();
  }
}

async function expectReached(a: Agent, b: Agent): Promise<void> {
  await eventually(() => a.reaches(1), 'the second stage, from the first');
  await eventually(() => b.reaches(0), 'the first stage, from the second');
}

test('one that the mesh took for gone, and that came back under another key', async () => {
  const a = await Agent.open(0);
  const b = await Agent.open(1);
  await expectReached(a, b);
  expect(await a.isAnsweredBy(b)).toBe(true);
  const before = a.session.id;
  await b.registry.retire(before, 'silent for 2.1 s', await SessionIdentity.create());
  await eventually(() => a.session.id !== before && b.registry.get(a.session.id), 'its new session');
  await expectReached(a, b);
  // The connection that there was is of the session that it had.
  await eventually(() => a.isAnsweredBy(b), 'an answer to its new session');
});

test('one that has refuted that it is gone is still of its provider', async () => {
  const a = await Agent.open(0);
  const b = await Agent.open(1);
  const { lifecycle, version } = a.session.record;
  a.registry.dispute(a.session.id, { lifecycle, version });
  await eventually(() => (b.registry.get(a.session.id)?.version ?? 0) > version, 'its later record');
  await expectReached(a, b);
});

test('one that no other lets through says why, once', async () => {
  const a = await Agent.open(0);
  const b = await Agent.open(1);
  await eventually(() => a.reaches(1), 'the second stage');
  a.lines.splice(0);
  await b.session.update({ lifecycle: 'DOWN' });
  await eventually(async () => !(await a.reaches(1)), 'it to be refused');
  await a.reaches(1);
  const said = a.lines.filter((line) => line.includes('no other node of its pipeline is known'));
  expect(said, a.lines.join('')).toHaveLength(1);
});
