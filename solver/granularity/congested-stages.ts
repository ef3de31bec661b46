/** Which stages hold a pipeline up, by their queues (FlexPipe §9.3). */

export interface StageQueue {
  /** Micro-batches that wait before the stage. */
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
/** And from so many micro-batches: one that waits while one is computed is how pipelines are kept busy. */
const waiting_min = 2;

/** The worst first. A pipeline whose stages all queue alike has none: it is too small as a whole. */
export function congestedStages(queues: readonly StageQueue[]): CongestedStage[] {
  const backlogs = queues.map(({ waiting, stage_s }) => waiting * stage_s);
  return queues
    .flatMap(({ waiting }, stage): CongestedStage[] => {
      const others = backlogs.filter((_, index) => index !== stage).sort((a, b) => a - b);
      const median_s = others[Math.floor((others.length - 1) / 2)] ?? 0;
      const backlog_s = backlogs[stage]!;
      if (waiting < waiting_min || backlog_s < backlog_factor * median_s) return [];
      return [
        {
          stage,
          backlog_s,
          because: `${waiting} micro-batches wait before stage ${stage}, ${backlog_s.toFixed(2)} s of its work; the median of the others is ${median_s.toFixed(2)} s`,
        },
      ];
    })
    .sort((a, b) => b.backlog_s - a.backlog_s);
}
