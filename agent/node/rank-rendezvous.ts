import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { waitUntil } from '../../host/wait-until.ts';
import { writeFileAtomicallyAsync } from '../../host/whole-file.ts';
import type { AgentState } from '../../spec/agent-state.ts';
import type { HpcserveError } from '../../spec/errors/error.ts';
import type { LaunchSpec } from '../../spec/launch.ts';
import { launchFiles } from '../../spec/state-layout.ts';
import type { UnitGroup } from './assign-devices.ts';
import type { NodeIdentity } from './slurm-environment.ts';

/** Lower: the end of one rank is noticed sooner, more questions to the shared filesystem. */
const look_ms = 500;

/** Where the ranks of an engine find each other, and the key they share. */
export interface Meeting {
  address: string;
  port: number;
  key: string;
  /** The first node, by the name that its agent's files have. */
  node: string;
  /** Of the engine there; absent: it did not say. */
  version?: string;
}

export type RankNotice =
  | { phase: 'up'; meeting?: Meeting; node?: string }
  | { phase: 'ended'; because: string };

interface RankRendezvousOptions {
  launch_folder: string;
  unit: string;
  /** Differs for each run of the job: what an earlier one left behind is no news. */
  run: string;
}

/** Where a process stands among those of a replica on several nodes. */
export interface RankPlace {
  /** 0: the first, which answers requests. */
  rank: number;
  nodes: number;
  /** Name of this node. */
  node: string;
  /** Of this node, as the others reach it. */
  address: string;
  /** Ports that others may be told of. */
  port_range?: readonly [first: number, last: number];
  board: RankRendezvous;
  /** Resolves once that node is lost: nobody there can tell it. Rejects where the signal is aborted. */
  untilNodeLost(node: string, signal: AbortSignal): Promise<void>;
}

/** Where the process of a group stands among those of its replica; undefined where all of it is on this node. */
export function placeOf(
  launch: Pick<LaunchSpec, 'launch_folder' | 'port_range'>,
  group: UnitGroup,
  { node, node_index }: Pick<NodeIdentity, 'node' | 'node_index'>,
  address: string,
  environment: NodeJS.ProcessEnv,
  untilNodeLost: RankPlace['untilNodeLost'],
): RankPlace | undefined {
  const unit = group.units[0]!;
  if (unit.nodes === undefined) return undefined;
  const { launch_folder, port_range } = launch;
  return {
    rank: node_index - unit.node_index,
    nodes: unit.nodes,
    node,
    address,
    port_range,
    untilNodeLost,
    board: new RankRendezvous({ launch_folder, unit: unit.unit, run: runOf(environment) }),
  };
}

/** Why a rank ended, for the others. */
export function whyEnded({ error }: { error?: HpcserveError }): string {
  return error ? [error.message, ...error.because].join(': ') : 'it was asked to end';
}

/** The job and how often it was requeued; without Slurm a launch runs once. */
function runOf(environment: NodeJS.ProcessEnv): string {
  const { SLURM_JOB_ID = 'local', SLURM_RESTART_COUNT = '0' } = environment;
  return `${SLURM_JOB_ID}.${SLURM_RESTART_COUNT}`;
}

/** What the agents of a replica on several nodes tell each other: a file each, in the folder of the launch (0700). */
export class RankRendezvous {
  readonly #options: RankRendezvousOptions;

  constructor(options: RankRendezvousOptions) {
    this.#options = options;
  }

  /** The meeting's key is in the file, which nobody else may read. */
  async tell(rank: number, notice: RankNotice): Promise<void> {
    const path = this.#path(rank);
    const text = JSON.stringify({ run: this.#options.run, ...notice });
    // After a crash of this node the run is over, and what it told is no news.
    await writeFileAtomicallyAsync(path, `${text}\n`, { durability: 'content' });
  }

  /** Undefined where it has told nothing in this run. */
  async read(rank: number): Promise<RankNotice | undefined> {
    let text: string;
    try {
      text = await readFile(this.#path(rank), 'utf8');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
      throw error;
    }
    const { run, ...notice } = JSON.parse(text) as RankNotice & { run: string };
    return run === this.#options.run ? notice : undefined;
  }

  /** Looks until the agent of that node has left, or the time is up: what it has to say is said by then. */
  async untilLeft(node: string, timeout_ms: number): Promise<void> {
    const path = join(this.#options.launch_folder, launchFiles.agentState(node));
    const hasLeft = async (): Promise<true | undefined> => {
      const { phase } = JSON.parse(await readFile(path, 'utf8')) as AgentState;
      return phase === 'stopped' || phase === 'failed' ? true : undefined;
    };
    await waitUntil(hasLeft, { timeout_ms, interval_ms: look_ms });
  }

  /** Looks until `rank` has told what is waited for. A filesystem that is away for a while is waited for too. */
  async until<T>(rank: number, is: (notice: RankNotice) => T | undefined, signal: AbortSignal): Promise<T> {
    for (;;) {
      const notice = await this.read(rank).catch((error: NodeJS.ErrnoException) => {
        if (error.code === undefined) throw error;
        return undefined;
      });
      const found = notice && is(notice);
      if (found !== undefined) return found;
      await delay(look_ms, undefined, { signal });
    }
  }

  #path(rank: number): string {
    const { launch_folder, unit } = this.#options;
    return join(launch_folder, launchFiles.part(unit, rank));
  }
}
