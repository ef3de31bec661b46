/** Which batches of a pipeline have their operators measured, and what came of it. */

/** The first ones are rare prompts and cold memory; then what is known is wanted soon. */
const first_batches: readonly number[] = [4, 32];
/** Later every so manieth. Lower: times follow load sooner; higher: devices compute fewer batches twice. */
const every_batches = 256;
/** Weight of the newest measured batch. Lower: steadier; higher: follows load sooner. */
const share = 0.3;

/** @param number of a batch, counted from 1 */
export function areOperatorsMeasured(number: number): boolean {
  return first_batches.includes(number) || number % every_batches === 0;
}

export function inMicroseconds(seconds: readonly number[]): number[] {
  return seconds.map((value) => Math.round(value * 1e6));
}

/**
 * @param means_us of a stage's operators; empty before the first
 * @param measured_us zeros where the stage measured nothing
 * @returns the means with this batch
 */
export function withMeasured(means_us: readonly number[], measured_us: readonly number[]): readonly number[] {
  if (measured_us.every((us) => us === 0)) return means_us;
  if (means_us.length !== measured_us.length) return measured_us;
  return means_us.map((mean, index) => mean + share * (measured_us[index]! - mean));
}
