import { HpcserveError } from '../../spec/errors/error.ts';
import { type FrameBytes, type FrameKind, kindOf } from './frame.ts';
import type { FramePort } from './frame-port.ts';

/** Of batches, and of what becomes of them. */
const batch_kinds: ReadonlySet<FrameKind | undefined> = new Set(['result', 'failed']);

/**
 * A coordinator's place in a ring, with two who listen: who waits for results, and who changes the layout. Each is
 * given its own frames in order, and both hear that the ring broke. That is for good: what was on its way is lost.
 */
export class SortedPort implements FramePort {
  readonly #port: FramePort;
  readonly #results: { frame: FrameBytes; came_ms: number }[] = [];
  readonly #others: FrameBytes[] = [];
  #broken: HpcserveError | undefined;
  #came_ms = 0;

  constructor(port: FramePort) {
    this.#port = port;
  }

  get isUp(): boolean {
    return this.#broken === undefined && this.#port.isUp;
  }

  /** Of results alone: nobody asks how long other frames lay here. */
  get came_ms(): number {
    return this.#came_ms;
  }

  /** Why the ring is broken. */
  get broken(): HpcserveError | undefined {
    return this.#broken;
  }

  /** The next frame that is no result. @returns undefined where there is none, or the ring broke: see `broken` */
  pollOther(): FrameBytes | undefined {
    if (this.#others.length === 0 && this.#broken === undefined)
      try {
        this.#sort();
      } catch (error) {
        if (!(error instanceof HpcserveError)) throw error;
        this.#broken ??= error;
      }
    return this.#others.shift();
  }

  poll(): FrameBytes | undefined {
    this.#sort();
    const result = this.#results.shift();
    if (result) this.#came_ms = result.came_ms;
    return result?.frame;
  }

  receive(): FrameBytes {
    for (;;) {
      const frame = this.poll();
      if (frame) return frame;
      this.#put(this.#guard(() => this.#port.receive()));
    }
  }

  send(frame: FrameBytes): void {
    if (this.#broken === undefined) this.#port.send(frame);
  }

  /** Nobody changes the layout: what came for that is of a change that is over. */
  clear(): void {
    this.#others.length = 0;
  }

  close(): void {
    this.#port.close();
  }

  #sort(): void {
    if (this.#broken) throw this.#broken;
    for (let frame = this.#guard(() => this.#port.poll()); frame; ) {
      this.#put(frame);
      frame = this.#guard(() => this.#port.poll());
    }
  }

  #put(frame: FrameBytes): void {
    if (batch_kinds.has(kindOf(frame))) this.#results.push({ frame, came_ms: this.#port.came_ms });
    else this.#others.push(frame);
  }

  #guard<T>(use: () => T): T {
    try {
      return use();
    } catch (error) {
      if (error instanceof HpcserveError) this.#broken ??= error;
      throw error;
    }
  }
}
