/** Both sides of a joined node: the process that stands for it, and control, which tells it what to run. */
import { existsSync, mkdirSync, readdirSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type AgentProcess, JoinedHost } from '../../../control/joined-node/joined-host.ts';
import type { PreparedRun } from '../../../control/joined-node/own-server.ts';
import { Reconciler } from '../../../control/reconcile/reconciler.ts';
import { JoinedNodeRunner } from '../../../control/runner/joined-runner.ts';
import { forgetOldNodes, inspectJoinedNodes, openOrders } from '../../../control/state/joined-nodes.ts';
import { writeFileAtomically } from '../../../host/whole-file.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { joinedNodeFiles, joinedNodesFolder } from '../../../spec/joined-node.ts';
import {
  deploymentState,
  launchRecord,
  plannedLaunch,
  ScriptedRunner,
  site,
  temporaryStore,
} from '../support.ts';

let place: ReturnType<typeof temporaryStore>;
let agents: FakeAgent[];
beforeEach(() => {
  place = temporaryStore();
  agents = [];
});
afterEach(() => place.dispose());

/** Ends when it is told to, after a while. */
class FakeAgent implements AgentProcess {
  readonly signals: NodeJS.Signals[] = [];
  over = false;
  #end: (code: number) => void = () => undefined;
  readonly ended = new Promise<number>((resolve) => {
    this.#end = resolve;
  });
  signal(name: NodeJS.Signals): void {
    this.signals.push(name);
    setTimeout(() => {
      this.over = true;
      this.#end(0);
    }, 300);
  }
}

const id = 'abcdef12';
const launchId = (number: number): string => number.toString(16).padStart(16, '0');
const nodeFolder = (): string => join(joinedNodesFolder(place.store.layout), id);
const inOrders = (name: string): string => join(nodeFolder(), joinedNodeFiles.orders, name);
function order(number: number): void {
  writeFileAtomically(
    inOrders(joinedNodeFiles.order(launchId(number))),
    JSON.stringify({ format: 1, launch_file: '/nowhere' }),
  );
}

const device = { kind: 'cpu', model: 'CPU', memory_bytes: 1e9, isa: [], cores: [0] };

function host(): JoinedHost {
  const launch_folder = join(place.folder, 'idle');
  mkdirSync(launch_folder, { recursive: true });
  const state = {
    ...{ format: 1, phase: 'serving', node: 'n1', hostname: 'n1', node_index: 0 },
    ...{ started_at_ms: 1, updated_at_ms: 1, devices: [device], sessions: [] },
  };
  writeFileSync(join(launch_folder, 'n1.state.json'), JSON.stringify(state));
  const launch = { launch_id: `${id}00000000`, launch_folder, tier: 'stable' };
  return new JoinedHost({
    layout: place.store.layout,
    idle: { launch, launch_file: '/idle' } as unknown as PreparedRun,
    node: 'n1',
    startAgent: () => {
      const agent = new FakeAgent();
      agents.push(agent);
      return agent;
    },
    note: () => undefined,
    now_ms: () => Date.now(),
    command: 'test',
  });
}

describe('the process of a joined node', () => {
  it('leaves no agent behind where it cannot go on, and is there until that has ended', async () => {
    const running = host();
    const ended = running.run();
    await expect.poll(() => inspectJoinedNodes(place.store.layout)).toMatchObject([{ there: true }]);
    // What it reads there makes no sense to it.
    writeFileSync(inOrders(joinedNodeFiles.status(launchId(1))), '{');
    order(1);
    let heldToTheEnd = false;
    const watch = setInterval(() => {
      heldToTheEnd ||= agents[0]!.signals.length > 0 && existsSync(join(nodeFolder(), joinedNodeFiles.lock));
    }, 20);
    await expect(ended).rejects.toThrow();
    clearInterval(watch);
    expect(agents).toMatchObject([{ signals: ['SIGTERM'], over: true }]);
    expect(heldToTheEnd).toBe(true);
    expect(existsSync(join(nodeFolder(), joinedNodeFiles.lock))).toBe(false);
  });
});

const kind = 'joined-n1';
/** A node that joined, as far as its folder tells. */
function joined(): void {
  mkdirSync(join(nodeFolder(), joinedNodeFiles.orders), { recursive: true });
  const node = { format: 1, id, node_kind: kind, node: 'n1', hostname: 'n1', tier: 'stable' };
  const hardware = { devices: [device], cpus: 1, memory_bytes: 1e9, architecture: 'x86_64', isa: [] };
  writeFileSync(
    join(nodeFolder(), joinedNodeFiles.node),
    JSON.stringify({ ...node, ...hardware, joined_at_ms: Date.now() }),
  );
}

describe('the folders of joined nodes', () => {
  it('may be on their way out while somebody looks', () => {
    joined();
    rmSync(join(nodeFolder(), joinedNodeFiles.orders), { recursive: true });
    expect(inspectJoinedNodes(place.store.layout)).toMatchObject([{ there: false, open_orders: [] }]);
  });

  it('are forgotten after a while, also of those that never said what they are', () => {
    const base = joinedNodesFolder(place.store.layout);
    const [old, young] = ['00000001', '00000002'].map((name) => join(base, name));
    for (const folder of [old!, young!]) mkdirSync(join(folder, joinedNodeFiles.orders), { recursive: true });
    utimesSync(old!, 0, 0);
    forgetOldNodes(place.store.layout, Date.now());
    expect(readdirSync(base)).toEqual(['00000002']);
  });
});

describe('a launch on a joined node', () => {
  function reconciler(slurm = new ScriptedRunner()): Reconciler {
    return new Reconciler({
      site,
      store: place.store,
      runner: new JoinedNodeRunner(slurm, place.store.layout),
      facts: { user: 'someone', environment: {} },
      now_ms: () => Date.now(),
      emit: () => undefined,
      command: 'test',
    });
  }

  it('is followed while Slurm is away', async () => {
    joined();
    place.store.prepareDeployment('demo');
    const planned = { ...plannedLaunch('m-1'), node_kind: kind };
    const job_id = `joined.${id}.${launchId(1)}`;
    const launches = [
      launchRecord(1, { planned, phase: 'submitted', job_id }),
      launchRecord(2, { phase: 'submitted', job_id: '7' }),
    ];
    place.store.write(deploymentState(launches));
    order(1);
    writeFileSync(
      inOrders(joinedNodeFiles.status(launchId(1))),
      JSON.stringify({ format: 1, phase: 'ended', started_at_ms: 1, exit_code: 8 }),
    );
    const slurm = new ScriptedRunner();
    slurm.away = new HpcserveError('E_SLURM_UNREACHABLE', { what: 'no answer' });
    const { state } = await reconciler(slurm).pass('demo');
    expect(state.launches).toMatchObject([
      { phase: 'ended', last: { exit_code: 8 } },
      { phase: 'submitted', job_id: '7' },
    ]);
  });

  it('whose node is taken for gone is told to end, should the node be back', async () => {
    joined();
    place.store.prepareDeployment('demo');
    const planned = { ...plannedLaunch('m-1'), node_kind: kind };
    const job_id = `joined.${id}.${launchId(1)}`;
    place.store.write(deploymentState([launchRecord(1, { planned, phase: 'submitted', job_id })]));
    order(1);
    writeFileSync(
      inOrders(joinedNodeFiles.status(launchId(1))),
      JSON.stringify({ format: 1, phase: 'running', started_at_ms: 1 }),
    );
    const { state } = await reconciler().pass('demo');
    expect(state.launches[0]).toMatchObject({ phase: 'ended', last: { state: 'LEFT' } });
    expect(existsSync(inOrders(joinedNodeFiles.cancel(launchId(1))))).toBe(true);
    const back = host();
    const ended = back.run();
    await expect.poll(() => openOrders(nodeFolder()), { timeout: 5000 }).toEqual([]);
    back.stop();
    await ended;
  });
});
