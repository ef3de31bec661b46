import { processTree, readActivity } from '../../host/process-tree.ts';

/**
 * Between two looks for processes that are new, and the share of a core that they may take, since they are as long as
 * the node has processes. Lower pauses, higher share: found sooner; else: less is read of /proc.
 */
const refresh_ms_min = 5000;
const refresh_ms_max = 15_000;
const refresh_share = 0.0005;

/** Processes that live so long are a part of the engine; shorter ones are helpers, which come and go. */
const settled_ms = 5000;

/** Programs that engines build kernels with. */
const compilers =
  /^(cc1(plus)?|gcc|g\+\+|c\+\+|clang(\+\+)?|nvcc|cicc|ptxas|fatbinary|ninja|hipcc|lld|ld|as)$/;

interface KnownProcess {
  name: string;
  /** Processor time as it was seen last. */
  cpu_ms: number;
  /** On the monotonic clock; those that were there at the first look have been there for long. */
  seen_since_ms: number;
}

/** What `name (pid)` is: how messages name a process. */
type NamedProcess = string;

/** The processes of an engine: whether one of them is stopped or has ended, and how much they compute. */
export class EngineProcesses {
  readonly #leader: number;
  readonly #detached: (() => Promise<number | undefined>) | undefined;
  #known = new Map<number, KnownProcess>();
  #hasLooked = false;
  /** When to look for new ones, at the latest. */
  #refresh_at_ms = Number.NEGATIVE_INFINITY;
  #cpu_ms = 0;

  /** @param detached first process of those that are no children of the leader, once it runs */
  constructor(leader: number, detached?: () => Promise<number | undefined>) {
    this.#leader = leader;
    this.#detached = detached;
  }

  /** Pids as they were seen last. */
  get pids(): readonly number[] {
    return [...this.#known.keys()];
  }

  /**
   * `ended`: since the look before, without helpers that had only just come; `cpu_ms`: of all of them since ever, those
   * included that have ended; `is_compiling`: a compiler is among them.
   */
  async look(): Promise<{
    stopped: NamedProcess[];
    ended: NamedProcess[];
    cpu_ms: number;
    is_compiling: boolean;
  }> {
    let is_compiling = false;
    const stopped: NamedProcess[] = [];
    const ended = this.#takeEnded();
    await this.#refresh();
    for (const [pid, known] of this.#known) {
      const activity = readActivity(pid);
      // Told at the next look.
      if (activity === undefined) continue;
      if (compilers.test(activity.name)) is_compiling = true;
      if (activity.is_stopped) stopped.push(`${activity.name} (${pid})`);
      this.#cpu_ms += Math.max(0, activity.cpu_ms - known.cpu_ms);
      known.cpu_ms = activity.cpu_ms;
      known.name = activity.name;
    }
    this.#hasLooked = true;
    return { stopped, ended, cpu_ms: this.#cpu_ms, is_compiling };
  }

  /** Before others are looked for, among which they would be forgotten. */
  #takeEnded(): NamedProcess[] {
    const ended: NamedProcess[] = [];
    for (const [pid, { name, seen_since_ms }] of this.#known) {
      if (readActivity(pid) !== undefined) continue;
      this.#known.delete(pid);
      this.#refresh_at_ms = Number.NEGATIVE_INFINITY;
      if (performance.now() - seen_since_ms >= settled_ms && !compilers.test(name))
        ended.push(`${name} (${pid})`);
    }
    return ended;
  }

  async #refresh(): Promise<void> {
    const began_ms = performance.now();
    if (began_ms < this.#refresh_at_ms) return;
    const detached = await this.#detached?.();
    const trees = [this.#leader, ...(detached === undefined ? [] : [detached])].map(processTree);
    const found = (await Promise.all(trees)).flat();
    const seen_since_ms = this.#hasLooked ? began_ms : Number.NEGATIVE_INFINITY;
    const before = this.#known;
    this.#known = new Map();
    for (const pid of new Set([...before.keys(), ...found])) {
      const activity = readActivity(pid);
      const known = before.get(pid);
      if (known) this.#known.set(pid, known);
      else if (activity)
        this.#known.set(pid, { name: activity.name, cpu_ms: activity.cpu_ms, seen_since_ms });
    }
    const took_ms = performance.now() - began_ms;
    const pause_ms = Math.min(refresh_ms_max, Math.max(refresh_ms_min, took_ms / refresh_share));
    this.#refresh_at_ms = began_ms + pause_ms;
  }
}
