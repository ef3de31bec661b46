import { HpcserveError } from '../../spec/errors/error.ts';
import type { RequestScan } from './request-scan.ts';

/** Bodies up to this size are read at once: in less than half a millisecond. */
const atOnce_bytes = 64 * 1024;
/** Read of one body before the clock is looked at. */
const slice_bytes = 32 * 1024;
/** Longest time in which the event loop does nothing but read bodies. Lower: others wait less; higher: fewer turns. */
const turn_ms = 2;

interface Waiting {
  scan: RequestScan;
  done: (error: HpcserveError | undefined) => void;
}

/** Reads bodies: small ones at once, and large ones in slices between which the event loop turns, all in turn. */
export class ScanQueue {
  #waiting: Waiting[] = [];
  #scheduled = false;

  /** Calls back when the body is read, or why it cannot be. */
  read(scan: RequestScan, done: Waiting['done']): void {
    if (scan.bytes.length <= atOnce_bytes) {
      const outcome = step(scan, scan.bytes.length);
      done(outcome === true ? undefined : (outcome as HpcserveError));
      return;
    }
    this.#waiting.push({ scan, done });
    this.#schedule();
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      this.#turn();
      if (this.#waiting.length > 0) this.#schedule();
    });
  }

  #turn(): void {
    const until_ms = performance.now() + turn_ms;
    do {
      const next = this.#waiting.shift()!;
      const outcome = step(next.scan, slice_bytes);
      if (outcome === false) this.#waiting.push(next);
      else next.done(outcome === true ? undefined : outcome);
    } while (this.#waiting.length > 0 && performance.now() < until_ms);
  }
}

/** Whether it is read whole, or what is wrong with it. */
function step(scan: RequestScan, bytes: number): boolean | HpcserveError {
  try {
    return scan.step(bytes);
  } catch (error) {
    if (error instanceof HpcserveError) return error;
    throw error;
  }
}
