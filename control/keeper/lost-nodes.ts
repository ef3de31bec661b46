import {
  decideLost,
  type NodeSigns,
  type Suspicion,
  type WatchedLaunch,
} from '../../solver/keeping/lost-nodes.ts';
import type { AgentState } from '../../spec/agent-state.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { SessionRecord } from '../../spec/session-record.ts';
import type { LiveFacts } from '../plan/live-facts.ts';
import type { Observation } from '../reconcile/observe.ts';
import type { Operations } from '../runner/operations.ts';
import type { DeploymentState } from '../state/deployment-state.ts';
import { joinedJob } from '../state/joined-job-id.ts';

/** What is asked of the mesh. */
interface SeenMesh {
  snapshot(): Pick<SessionRecord, 'lifecycle' | 'metadata'>[];
  close(): Promise<void>;
}

/** Between two questions to Slurm while an agent is gone, ms, where jobs are not polled more seldom. */
const ask_ms = 5_000;
/** After the mesh could not be opened: until the next try, ms. */
const mesh_pause_ms = 60_000;
/** The mesh is looked at so often, ms. A loss is no matter of a second here: Slurm needs longer to notice it. */
const mesh_poll_ms = 5_000;

/**
 * Finds jobs whose node is lost, for the keeper: what it sees of mesh and cluster is put to `decideLost`. Slurm is
 * asked only while the agent of a running job is gone from the mesh, so in peace this costs the controller nothing.
 */
export class LostNodes {
  readonly #operations: Pick<Operations, 'loaded' | 'slurm' | 'runner' | 'now_ms'>;
  readonly #openMesh: (folder: string) => Promise<SeenMesh>;
  readonly #suspected = new Map<string, ReadonlyMap<string, Suspicion>>();
  readonly #lost = new Set<string>();
  #mesh: SeenMesh | undefined;
  #mesh_from_ms = Number.NEGATIVE_INFINITY;
  #asked: { at_ms: number; nodes: LiveFacts['nodes'] } | undefined;

  constructor(
    operations: Pick<Operations, 'loaded' | 'slurm' | 'runner' | 'now_ms'>,
    openMesh: (folder: string) => Promise<SeenMesh> = openRendezvous,
  ) {
    this.#operations = operations;
    this.#openMesh = openMesh;
  }

  /** @returns launches to end now, with what says so */
  async find(state: DeploymentState, observation: Observation): Promise<ReadonlyMap<string, string>> {
    const { loaded, slurm, now_ms } = this.#operations;
    const hold_ms = 1000 * loaded.site.keeper.lost_after_s;
    if (hold_ms === 0 || slurm === undefined || slurm.unknown_resources !== undefined) return new Map();
    if (this.#lost.size > 0) await this.#lookAgain();
    const running = state.launches.filter(
      ({ launch_id, job_id, phase }) =>
        phase === 'submitted' &&
        joinedJob(job_id) === undefined &&
        observation.launches.get(launch_id)?.job?.phase === 'running',
    );
    if (running.length === 0) return this.#forget(state.name);
    const agents = await this.#agents();
    const gone = running.filter(({ launch_id }) =>
      [...(agents.get(launch_id)?.values() ?? [])].includes('gone'),
    );
    if (gone.length === 0) return this.#forget(state.name);
    const nodes = await this.#nodes();
    const silent = namesOf(nodes, (states) => states.includes('not_responding') || states.includes('down'));
    const all = namesOf(nodes);
    const schedulerOf = (node: string): NodeSigns['scheduler'] =>
      silent.has(node) ? 'silent' : all.has(node) ? 'hears' : 'unknown';
    const launches = gone.map(({ launch_id }): WatchedLaunch => {
      const seen = observation.launches.get(launch_id)!;
      const nodes = [...agents.get(launch_id)!].map(
        ([node, agent]): NodeSigns => ({
          node,
          agent,
          scheduler: schedulerOf(node),
          has_ended: seen.agents.some((each) => each.node === node && hasEnded(each)),
        }),
      );
      return { launch_id, nodes, runs: seen.job?.state === 'RUNNING' };
    });
    const decided = decideLost({
      now_ms: now_ms(),
      launches,
      cluster: { nodes: all.size, silent: silent.size },
      suspected: this.#suspected.get(state.name) ?? new Map(),
      hold_ms,
    });
    this.#suspected.set(state.name, decided.suspected);
    for (const node of decided.lost.flatMap((launch) => launch.nodes)) this.#lost.add(node);
    return new Map(decided.lost.map(({ launch_id, because }) => [launch_id, because]));
  }

  /** Nodes of jobs that were ended for it, which Slurm counts: until it has noticed, or hears from them again. */
  get nodes(): ReadonlySet<string> {
    return this.#lost;
  }

  async close(): Promise<void> {
    await this.#mesh?.close();
    this.#mesh = undefined;
  }

  async #lookAgain(): Promise<void> {
    const counted = namesOf(
      await this.#nodes(),
      (states) => states.includes('not_responding') && !states.includes('down'),
    );
    for (const node of this.#lost) if (!counted.has(node)) this.#lost.delete(node);
  }

  #forget(name: string): ReadonlyMap<string, string> {
    this.#suspected.delete(name);
    return new Map();
  }

  /** By launch and node, what the mesh knows of its agent. */
  async #agents(): Promise<Map<string, Map<string, 'speaks' | 'gone'>>> {
    const agents = new Map<string, Map<string, 'speaks' | 'gone'>>();
    for (const { lifecycle, metadata } of (await this.#openedMesh())?.snapshot() ?? []) {
      const { role, launch_id, node } = metadata;
      if (role !== 'node-agent' || launch_id === undefined) continue;
      const ofLaunch = agents.get(launch_id) ?? new Map<string, 'speaks' | 'gone'>();
      agents.set(launch_id, ofLaunch);
      // One that was stopped for a while comes back under another session.
      if (ofLaunch.get(node) !== 'speaks') ofLaunch.set(node, lifecycle === 'LEFT' ? 'gone' : 'speaks');
    }
    return agents;
  }

  /** Undefined while it is away: then nothing counts as lost. */
  async #openedMesh(): Promise<SeenMesh | undefined> {
    const { loaded, now_ms } = this.#operations;
    if (this.#mesh || now_ms() < this.#mesh_from_ms) return this.#mesh;
    this.#mesh_from_ms = now_ms() + mesh_pause_ms;
    try {
      this.#mesh = await this.#openMesh(loaded.layout.mesh_folder);
    } catch (error) {
      if (!(error instanceof HpcserveError) || !error.code.startsWith('E_MESH_')) throw error;
    }
    return this.#mesh;
  }

  async #nodes(): Promise<LiveFacts['nodes']> {
    const { slurm, runner, now_ms } = this.#operations;
    const age_max_ms = Math.max(ask_ms, runner.poll_interval_ms);
    if (this.#asked && now_ms() - this.#asked.at_ms < age_max_ms) return this.#asked.nodes;
    this.#asked = { at_ms: now_ms(), nodes: await slurm!.nodeGroups() };
    return this.#asked.nodes;
  }
}

/** Its own last word: the job ends by itself, once the script is through. */
function hasEnded({ phase }: AgentState): boolean {
  return phase === 'stopped' || phase === 'failed';
}

function namesOf(
  groups: LiveFacts['nodes'],
  are: (states: readonly string[]) => boolean = () => true,
): Set<string> {
  return new Set(groups.flatMap(({ nodes, states }) => (are(states) ? nodes : [])));
}

async function openRendezvous(folder: string): Promise<SeenMesh> {
  // Loaded here: the certificates behind the mesh would make every command that knows the keeper start later.
  const { RendezvousRegistry } = await import('../../mesh/index.ts');
  return RendezvousRegistry.open(folder, { create: false, poll_ms: mesh_poll_ms });
}
