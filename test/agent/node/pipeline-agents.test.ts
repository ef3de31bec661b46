/** Which agents one with stages of a pipeline asks, and the sockets by which its workers reach theirs. */
import { existsSync, mkdirSync, readdirSync } from 'node:fs';
import { createConnection } from 'node:net';
import { join } from 'node:path';
import pino from 'pino';
import { expect, test } from 'vitest';
import { PipelineAgents } from '../../../agent/node/pipeline-agents.ts';
import { stageSocket } from '../../../agent/node/stage-place.ts';
import { StageTunnels } from '../../../agent/node/stage-tunnels.ts';
import { LocalSession, RendezvousRegistry } from '../../../mesh/index.ts';
import { loadOrCreateNetworkKey } from '../../../mesh/network-key.ts';
import type { SessionMetadata } from '../../../spec/session-record.ts';
import { type TestProvider, testProvider } from '../../mesh/providers.ts';
import { metadata, scratchFolder } from '../../mesh/support.ts';

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
async function withTunnels(check: (tunnels: StageTunnels, folder: string) => Promise<void>): Promise<void> {
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
    await check(tunnels, folder);
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
