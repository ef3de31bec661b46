/** Which stages hold a pipeline up, by their queues (FlexPipe §9.3). */

export interface StageQueue {
  /** Micro-batches that wait before the stage, on average. */
  waiting: number;
  /** One micro-batch in it, as measured lately. */
  stage_s: number;
}

export interface CongestedStage {
  stage: number;
  /** What stands before it, in seconds of its own work. */
  backlog_s: number;
  because: string;
}

/** A stage is congested from this multiple of the median backlog of the others. Lower: refined sooner. */
const backlog_factor = 2;
/**
 * And from so many micro-batches on average, where there are several other stages. As many are on their way as there
 * are stages: where one takes k times what the others do, (η − 1)(1 − 1/k) of them lie before it.
 */
const waiting_min = 1;
/** The same as a share of the most that can wait there: of two stages, from half a micro-batch. That is k = 2. */
const waiting_share_min = 0.5;

/** The worst first. A pipeline whose stages all queue alike has none: it is too small as a whole. */
export function congestedStages(queues: readonly StageQueue[]): CongestedStage[] {
  const backlogs = queues.map(({ waiting, stage_s }) => waiting * stage_s);
  const enough = Math.min(waiting_min, waiting_share_min * (queues.length - 1));
  return queues
    .flatMap(({ waiting }, stage): CongestedStage[] => {
      const others = backlogs.filter((_, index) => index !== stage).sort((a, b) => a - b);
      const median_s = others[Math.floor((others.length - 1) / 2)] ?? 0;
      const backlog_s = backlogs[stage]!;
      if (backlog_s === 0 || waiting < enough || backlog_s < backlog_factor * median_s) return [];
      return [
        {
          stage,
          backlog_s,
          because: `${Number(waiting.toFixed(1))} micro-batches wait before stage ${stage}, ${milliseconds(backlog_s)} of its work; the median of the others is ${milliseconds(median_s)}`,
        },
      ];
    })
    .sort((a, b) => b.backlog_s - a.backlog_s);
}

function milliseconds(seconds: number): string {
  return `${Math.round(1000 * seconds)} ms`;
}
