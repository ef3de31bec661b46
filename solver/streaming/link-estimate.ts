/**
 * What of the link a slice gets now, from what its transfers took. Neighbours come and go, so an estimate follows:
 * downwards at once, because promises are broken by being late, upwards with patience.
 */

export interface LinkEstimate {
  bytes_per_s: number;
  /** What the device said of itself, or what it reached when it was tried alone. */
  announced_bytes_per_s: number;
  /** Transfers that were measured. */
  samples: number;
  /** The most that it ever was, once enough were measured: what the link gives while neighbours are idle. */
  reached_bytes_per_s?: number;
}

/**
 * Weight of a transfer that was slower than the estimate. Lower: a neighbour is noticed later; higher: noise is, too.
 */
const slower_weight = 0.5;
/** Weight of a faster one. Lower: what a neighbour leaves is used later; higher: estimates swing. */
const faster_weight = 0.1;
/** Transfers shorter than this say more of latency than of the link. */
const sample_bytes_min = 2 ** 20;
/** Below this share of what it gave at first, or of what is planned, a link is called slow. */
const slow_share = 0.5;
/** By then an odd first transfer has no more weight. Lower: told sooner; higher: less often in error. */
const samples_min = 8;

export function newLinkEstimate(announced_bytes_per_s: number): LinkEstimate {
  return { bytes_per_s: announced_bytes_per_s, announced_bytes_per_s, samples: 0 };
}

/** The estimate after a transfer during which the link was what limited; others say nothing of it. */
export function observeTransfer(estimate: LinkEstimate, bytes: number, seconds: number): LinkEstimate {
  if (bytes < sample_bytes_min || !(seconds > 0)) return estimate;
  const measured = bytes / seconds;
  const weight = measured < estimate.bytes_per_s ? slower_weight : faster_weight;
  const after: LinkEstimate = {
    ...estimate,
    bytes_per_s: estimate.bytes_per_s + weight * (measured - estimate.bytes_per_s),
    samples: estimate.samples + 1,
  };
  if (after.samples >= samples_min)
    after.reached_bytes_per_s = Math.max(estimate.reached_bytes_per_s ?? 0, after.bytes_per_s);
  return after;
}

/**
 * What a product counts on where it can read more to be done sooner. One that fills the link leaves its neighbours
 * what they get by force; one that counts on its share alone reads weights again only as far as that share lasts
 * beside them. What the link gives less than that counts as it is.
 * @param share of the link, as the plan divides it; absent: nobody else reads over it
 */
export function countedRate_bytes_per_s(
  { bytes_per_s, announced_bytes_per_s }: LinkEstimate,
  share = 1,
): number {
  return Math.min(bytes_per_s, share * announced_bytes_per_s);
}

/**
 * Why streaming is slower than was planned for; undefined where it is not. A link may be so from the beginning: a slot
 * of fewer lanes gives the first transfer no more than the last.
 * @param planned_bytes_per_s absent: nobody has a figure for it
 */
export function whySlow(
  { bytes_per_s, announced_bytes_per_s, samples }: LinkEstimate,
  planned_bytes_per_s = 0,
): string | undefined {
  if (samples < samples_min) return undefined;
  const gb = (value: number): string => `${(value / 1e9).toFixed(1)} GB/s`;
  const gives = `the link gives ${gb(bytes_per_s)} of the`;
  if (bytes_per_s < slow_share * planned_bytes_per_s)
    return `${gives} ${gb(planned_bytes_per_s)} that the plan assumes`;
  if (bytes_per_s >= slow_share * announced_bytes_per_s) return undefined;
  return `${gives} ${gb(announced_bytes_per_s)} that it gave at first`;
}
