/** Reads what `GET /metrics` answers: the text form of Prometheus, as far as the gateway writes it. */

export interface Sample {
  name: string;
  labels: Readonly<Record<string, string>>;
  value: number;
}

const line = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const label = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** @param wanted the names to keep; histograms by their parts (`…_bucket`, `…_sum`, `…_count`) */
export function readMetrics(text: string, wanted: (name: string) => boolean): Sample[] {
  const samples: Sample[] = [];
  for (const row of text.split('\n')) {
    if (row === '' || row.startsWith('#')) continue;
    const match = line.exec(row);
    if (!match?.[1] || !wanted(match[1])) continue;
    const labels: Record<string, string> = {};
    for (const [, name, value] of (match[2] ?? '').matchAll(label))
      labels[name!] = value!.replaceAll(/\\(.)/g, (_, mark: string) => (mark === 'n' ? '\n' : mark));
    const value = match[3] === '+Inf' ? Number.POSITIVE_INFINITY : Number(match[3]);
    samples.push({ name: match[1], labels, value });
  }
  return samples;
}

/** Counts of a histogram's buckets, not cumulative, by upper bound; the last one is beyond all bounds. */
export interface Buckets {
  bounds: number[];
  counts: number[];
}

/** Adds up the buckets of all series that pass. */
export function bucketsOf(samples: readonly Sample[], passes: (sample: Sample) => boolean): Buckets {
  const cumulative = new Map<number, number>();
  for (const sample of samples) {
    if (sample.labels.le === undefined || !passes(sample)) continue;
    const bound = sample.labels.le === '+Inf' ? Number.POSITIVE_INFINITY : Number(sample.labels.le);
    cumulative.set(bound, (cumulative.get(bound) ?? 0) + sample.value);
  }
  const bounds = [...cumulative.keys()].sort((a, b) => a - b);
  return {
    bounds,
    counts: bounds.map((bound, at) => cumulative.get(bound)! - (at ? cumulative.get(bounds[at - 1]!)! : 0)),
  };
}

/** What was observed since `before`. */
export function bucketsSince(now: Buckets, before: Buckets | undefined): Buckets {
  if (!before) return { bounds: now.bounds, counts: now.counts.map(() => 0) };
  const past = new Map(before.bounds.map((bound, at) => [bound, before.counts[at]!]));
  return {
    bounds: now.bounds,
    counts: now.counts.map((count, at) => Math.max(0, count - (past.get(now.bounds[at]!) ?? 0))),
  };
}

/** Interpolated within its bucket, as Prometheus does; null where nothing was observed. */
export function quantile({ bounds, counts }: Buckets, share: number): number | null {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (total === 0) return null;
  let left = share * total;
  for (const [at, count] of counts.entries()) {
    if (left > count || count === 0) {
      left -= count;
      continue;
    }
    const low = at === 0 ? 0 : bounds[at - 1]!;
    const high = bounds[at]!;
    return Number.isFinite(high) ? low + ((high - low) * left) / count : low;
  }
  return bounds.filter(Number.isFinite).at(-1) ?? null;
}
