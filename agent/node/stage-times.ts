import type { ModelLoad } from '../../spec/agent-state.ts';
import type { StageTime } from '../../spec/engine-contract.ts';

/** By model, what batches take at each stage of its pipeline. */
export type StageTimes = Readonly<Record<string, readonly StageTime[]>>;

/**
 * A stage that takes so much more or less is told. Lower: plans know sooner; higher: fewer writes of the state file.
 */
const news_share = 0.25;
/** Or a queue before it that is longer or shorter by so many batches. As above. */
const news_batches = 0.5;

/** As a worker reports them; undefined where it coordinates no pipeline that has computed. */
export function stageTimes(loads: readonly ModelLoad[]): StageTimes | undefined {
  const found = loads.flatMap(({ name, stages }) => (stages ? [[name, stages] as const] : []));
  return found.length > 0 ? Object.fromEntries(found) : undefined;
}

/** Whether what is measured now is worth a write of the agent's state: cuts, a time by a quarter, or a queue. */
export function areNews(told: StageTimes | undefined, now: StageTimes | undefined): boolean {
  if (now === undefined) return false;
  return Object.entries(now).some(([model, stages]) => {
    const before = told?.[model];
    if (before?.length !== stages.length) return true;
    return stages.some(({ begin, end, computed_us, operators_us, waiting = 0 }, index) => {
      const other = before[index]!;
      if (other.begin !== begin || other.end !== end) return true;
      if (haveMoved(other.operators_us, operators_us)) return true;
      if (Math.abs(waiting - (other.waiting ?? 0)) >= news_batches) return true;
      return Math.abs(computed_us - other.computed_us) > news_share * other.computed_us;
    });
  });
}

/** So much of a stage's time lies at other operators than was told. */
function haveMoved(told: readonly number[] | undefined, now: readonly number[] | undefined): boolean {
  if (now === undefined) return false;
  if (told === undefined) return true;
  const sum = (times_us: readonly number[]): number => times_us.reduce((all, us) => all + us, 0);
  const [told_us, now_us] = [sum(told), sum(now)];
  const moved = now.reduce((all, us, index) => all + Math.abs(us / now_us - told[index]! / told_us), 0);
  // What one has less, others have more.
  return moved / 2 > news_share / 2;
}
