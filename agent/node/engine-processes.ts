import { processTree, readActivity } from '../../host/process-tree.ts';

/**
 * Between two looks for processes that are new, and the share of a core that they may take, since they are as long as
 * the node has processes. Lower pauses, higher share: found sooner; else: less is read of /proc.
 */
const refresh_ms_min = 5000;
const refresh_ms_max = 15_000;
const refresh_share = 0.0005;

/** Programs that engines build kernels with. */
const compilers =
  /^(cc1(plus)?|gcc|g\+\+|c\+\+|clang(\+\+)?|nvcc|cicc|ptxas|fatbinary|ninja|hipcc|lld|ld|as)$/;

/** The processes of an engine: whether one of them is stopped, and how much they compute. */
export class EngineProcesses {
  readonly #leader: number;
  readonly #detached: (() => Promise<number | undefined>) | undefined;
  /** Processor time of each as it was seen last, ms. */
  #known = new Map<number, number>();
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
   * `stopped`: as `name (pid)`; `cpu_ms`: of all of them since ever, those included that have ended; `is_compiling`: a
   * compiler is among them.
   */
  async look(): Promise<{ stopped: string[]; cpu_ms: number; is_compiling: boolean }> {
    await this.#refresh();
    let is_compiling = false;
    const stopped: string[] = [];
    for (const [pid, before_ms] of this.#known) {
      const activity = readActivity(pid);
      if (activity === undefined) {
        this.#known.delete(pid);
        this.#refresh_at_ms = Number.NEGATIVE_INFINITY;
        continue;
      }
      if (compilers.test(activity.name)) is_compiling = true;
      if (activity.is_stopped) stopped.push(`${activity.name} (${pid})`);
      this.#cpu_ms += Math.max(0, activity.cpu_ms - before_ms);
      this.#known.set(pid, activity.cpu_ms);
    }
    return { stopped, cpu_ms: this.#cpu_ms, is_compiling };
  }

  async #refresh(): Promise<void> {
    const began_ms = performance.now();
    if (began_ms < this.#refresh_at_ms) return;
    const detached = await this.#detached?.();
    const trees = [this.#leader, ...(detached === undefined ? [] : [detached])].map(processTree);
    const found = (await Promise.all(trees)).flat();
    this.#known = new Map(found.map((pid) => [pid, this.#known.get(pid) ?? readActivity(pid)?.cpu_ms ?? 0]));
    const took_ms = performance.now() - began_ms;
    const pause_ms = Math.min(refresh_ms_max, Math.max(refresh_ms_min, took_ms / refresh_share));
    this.#refresh_at_ms = began_ms + pause_ms;
  }
}
