/**
 * Calls back at each multiple of an interval on this process's monotonic clock, and holds no process open. Tasks whose
 * intervals divide each other come in the same turn: a process at rest is woken once for all of them.
 *
 * @param interval_ms the first call comes after so long at most
 * @returns what ends it
 */
export function every(interval_ms: number, callback: () => void): () => void {
  let at_ms = nextMultiple_ms(interval_ms, performance.now());
  let timer: NodeJS.Timeout;
  const wait = (): void => {
    // The moment may have passed by now: Node warns of a time below 0.
    const left_ms = Math.max(0, at_ms - performance.now());
    // A timer may come a moment before its time: that moment must not become a call of its own.
    timer = setTimeout(() => {
      at_ms = Math.max(at_ms + interval_ms, nextMultiple_ms(interval_ms, performance.now()));
      wait();
      callback();
    }, left_ms).unref();
  };
  wait();
  return () => clearTimeout(timer);
}

function nextMultiple_ms(interval_ms: number, now_ms: number): number {
  return (Math.floor(now_ms / interval_ms) + 1) * interval_ms;
}
