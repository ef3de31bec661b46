/** Milliseconds of the machine's monotonic clock: the same in every thread, unlike `performance.now()`. */
export function monotonic_ms(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}
