/** LLMFabric's Fig. 4, in characters: what is served against what lives, over time. */

export interface Sample {
  /** Seconds since the start. */
  at_s: number;
  live_replicas: number;
  tokens_per_s: number;
}

const height = 12;
const width_max = 100;

/** `#` served tokens per second, `-` the declared rate of the replicas that live. */
export function plotRecovery(samples: readonly Sample[], rate_per_replica: number): string[] {
  const every = Math.max(1, Math.ceil(samples.length / width_max));
  const columns: { served: number; possible: number }[] = [];
  for (let at = 0; at + every <= samples.length; at += every) {
    const group = samples.slice(at, at + every);
    const mean = (of: (sample: Sample) => number): number =>
      group.reduce((sum, sample) => sum + of(sample), 0) / group.length;
    columns.push({
      served: mean(({ tokens_per_s }) => tokens_per_s),
      possible: mean(({ live_replicas }) => live_replicas) * rate_per_replica,
    });
  }
  const top = Math.max(1, ...columns.flatMap(({ served, possible }) => [served, possible]));
  const rowOf = (value: number): number => Math.round((1 - value / top) * (height - 1));
  const lines = Array.from({ length: height }, (_, row) => {
    const cells = columns.map(({ served, possible }) => {
      if (rowOf(possible) === row) return '-';
      return rowOf(served) <= row ? '#' : ' ';
    });
    const label = row === 0 || row === height - 1 ? Math.round(top * (1 - row / (height - 1))) : '';
    return `${String(label).padStart(6)} │${cells.join('').trimEnd()}`;
  });
  const seconds = samples.at(-1)?.at_s ?? 0;
  return [
    ...lines,
    `       └${'─'.repeat(columns.length)}`,
    `        0 s${`${Math.round(seconds)} s`.padStart(Math.max(1, columns.length - 3))}`,
    '        # tokens/s served   - declared rate of the replicas that live',
  ];
}

/** Slope and correlation of served tokens over live replicas, by least squares. */
export function proportionality(samples: readonly Sample[]): { per_replica: number; correlation: number } {
  const n = samples.length;
  const mean = (of: (sample: Sample) => number): number =>
    samples.reduce((sum, each) => sum + of(each), 0) / n;
  const live = mean(({ live_replicas }) => live_replicas);
  const served = mean(({ tokens_per_s }) => tokens_per_s);
  let covariance = 0;
  let liveVariance = 0;
  let servedVariance = 0;
  for (const sample of samples) {
    covariance += (sample.live_replicas - live) * (sample.tokens_per_s - served);
    liveVariance += (sample.live_replicas - live) ** 2;
    servedVariance += (sample.tokens_per_s - served) ** 2;
  }
  return {
    per_replica: served / live,
    correlation: covariance / Math.sqrt(liveVariance * servedVariance),
  };
}
