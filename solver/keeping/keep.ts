/**
 * What is done so that a deployment outlives its jobs: successors before time limits, replacements for jobs that
 * ended, an end of trying where nothing comes of it, and a budget. Pure: the live keeper and the simulations call it.
 */

/** One launch of a deployment, as far as keeping needs to know it. */
export interface KeptLaunch {
  launch_id: string;
  /** GPUs its job holds. */
  gpu_count: number;
  phase: 'waiting' | 'running' | 'ended';
  /** Another launch has its place already. */
  superseded: boolean;
  /** All its replicas serve now; have served at some time. */
  serving: boolean;
  served_at_ms?: number;
  /** When it was handed to the scheduler, started, and is over at the latest; Unix ms. */
  submitted_at_ms?: number;
  started_at_ms?: number;
  end_time_limit_ms?: number;
  ended_at_ms?: number;
  /** How it ended, in the scheduler's word. */
  end_state?: string;
  /** Launches in its place before it that came to nothing, one after the other. */
  tries: number;
}

export interface KeepSettings {
  /** Seconds before the end at which a job is warned and drains: the successor must serve by then. */
  signal_s: number;
  /** Taken for the wait in the queue and for loading until they were measured. */
  queue_wait_ms: number;
  load_ms: number;
  /** What was measured is multiplied by this: the next time may be worse. Higher: more overlap, more GPU-hours. */
  caution: number;
  /** First pause before a launch that came to nothing is tried again; doubled each time, up to `pause_max_ms`. */
  pause_ms: number;
  pause_max_ms: number;
  /** Tries in a row that may come to nothing. Lower: gives up sooner on what cannot work. */
  tries_max: number;
  /** GPU-hours the deployment may use in all; absent: no bound. */
  gpu_hours?: number;
  /** GPU-hours of launches that nobody remembers any more. */
  gpu_hours_before?: number;
}

export const defaultKeepSettings: KeepSettings = {
  signal_s: 120,
  queue_wait_ms: 60_000,
  load_ms: 60_000,
  caution: 1.5,
  pause_ms: 5_000,
  pause_max_ms: 15 * 60_000,
  tries_max: 6,
};

export type KeepAction =
  /** A successor now, while the launch still serves. */
  | { do: 'renew'; launch_id: string; because: string }
  /** Another in the place of one that is over. */
  | { do: 'replace'; launch_id: string; tries: number; because: string }
  /** Nothing more in its place. */
  | { do: 'give_up'; launch_id: string; because: string };

export interface KeepDecision {
  actions: KeepAction[];
  /** When something will be due if nothing happens before; Infinity: never. */
  next_at_ms: number;
  /** Time a launch is expected to take from submission until it serves. */
  lead_ms: number;
  gpu_hours_used: number;
}

/** @param launches the wanted and the recent superseded ones; what was measured of all counts */
export function keep(launches: readonly KeptLaunch[], now_ms: number, settings: KeepSettings): KeepDecision {
  const lead_ms = leadTime(launches, settings);
  const gpu_hours_used = (settings.gpu_hours_before ?? 0) + gpuTime_hours(launches, now_ms);
  const spent = settings.gpu_hours !== undefined && gpu_hours_used >= settings.gpu_hours;
  const actions: KeepAction[] = [];
  let next_at_ms = Number.POSITIVE_INFINITY;
  const due = (at_ms: number): boolean => {
    if (now_ms >= at_ms) return true;
    next_at_ms = Math.min(next_at_ms, at_ms);
    return false;
  };
  for (const launch of launches) {
    if (launch.superseded) continue;
    const { launch_id } = launch;
    if (launch.phase === 'running' && launch.end_time_limit_ms !== undefined) {
      const at_ms = renewalTime(launch, lead_ms, settings);
      if (spent || !due(at_ms)) continue;
      const left_s = Math.max(0, Math.round((launch.end_time_limit_ms - now_ms) / 1000));
      actions.push({ do: 'renew', launch_id, because: `its time limit is ${left_s} s away` });
    }
    if (launch.phase !== 'ended') continue;
    const ended = launch.end_state ?? 'it is gone';
    // A launch that served did what it could: its end is the end of a job, not of an attempt.
    const tries = launch.served_at_ms === undefined ? launch.tries + 1 : 0;
    if (spent)
      actions.push({
        do: 'give_up',
        launch_id,
        because: `${ended}; the budget of ${settings.gpu_hours} GPU-hours is used up`,
      });
    else if (tries >= settings.tries_max)
      actions.push({
        do: 'give_up',
        launch_id,
        because: `${ended}; ${tries} launches in a row came to nothing`,
      });
    else if (launch.ended_at_ms === undefined || due(launch.ended_at_ms + pause(tries, settings)))
      actions.push({ do: 'replace', launch_id, tries, because: `its job ended: ${ended}` });
  }
  return { actions, next_at_ms, lead_ms, gpu_hours_used };
}

/** Submission to serving, as it was lately: the worst wait and the worst load, with caution. */
function leadTime(launches: readonly KeptLaunch[], settings: KeepSettings): number {
  const waits = launches.flatMap(({ submitted_at_ms, started_at_ms }) =>
    submitted_at_ms === undefined || started_at_ms === undefined
      ? []
      : [Math.max(0, started_at_ms - submitted_at_ms)],
  );
  const loads = launches.flatMap(({ started_at_ms, served_at_ms }) =>
    started_at_ms === undefined || served_at_ms === undefined
      ? []
      : [Math.max(0, served_at_ms - started_at_ms)],
  );
  const wait = waits.length === 0 ? settings.queue_wait_ms : settings.caution * Math.max(...waits);
  const load = loads.length === 0 ? settings.load_ms : settings.caution * Math.max(...loads);
  return wait + load;
}

/**
 * Early enough for the successor to serve before the drain begins; but a launch lives for at least half its time,
 * or long queues would have nobody but successors of successors in them.
 */
function renewalTime(launch: KeptLaunch, lead_ms: number, settings: KeepSettings): number {
  const end_ms = launch.end_time_limit_ms!;
  const early_ms = end_ms - 1000 * settings.signal_s - lead_ms;
  const half_ms = launch.started_at_ms === undefined ? early_ms : (launch.started_at_ms + end_ms) / 2;
  return Math.max(early_ms, half_ms);
}

function pause(tries: number, { pause_ms, pause_max_ms }: KeepSettings): number {
  return tries === 0 ? 0 : Math.min(pause_max_ms, pause_ms * 2 ** (tries - 1));
}

/** What launches used until they ended, or until now. */
export function gpuTime_hours(
  launches: readonly Pick<KeptLaunch, 'gpu_count' | 'started_at_ms' | 'ended_at_ms'>[],
  now_ms: number,
): number {
  return launches.reduce((sum, { gpu_count, started_at_ms, ended_at_ms }) => {
    if (started_at_ms === undefined) return sum;
    return sum + (gpu_count * Math.max(0, (ended_at_ms ?? now_ms) - started_at_ms)) / 3_600_000;
  }, 0);
}
