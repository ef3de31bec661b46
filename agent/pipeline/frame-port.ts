import type { FrameBytes } from './frame.ts';

/**
 * A stage's two ends of the ring, as the thread that computes sees them: frames come in order, whole and undamaged, or
 * the ring is broken. Calls are synchronous, as everything of that thread is.
 *
 * Nobody needs to hold a frame back: a coordinator has at most so many batches on their way as its pipeline has stages,
 * so that this many frames lie in all of the ring.
 */
export interface FramePort {
  /** The stage before and the stage behind are there. */
  readonly isUp: boolean;
  /** When the frame that was given last had come, by `monotonic_ms`: it lay here since then. */
  readonly came_ms: number;
  /** The next frame; undefined where none is there. @throws HpcserveError E_STAGE_LOST: the ring is broken */
  poll(): FrameBytes | undefined;
  /** Waits for it. @throws HpcserveError E_STAGE_LOST */
  receive(): FrameBytes;
  /** The frame is the port's from now on. @throws HpcserveError E_STAGE_LOST */
  send(frame: FrameBytes): void;
  close(): void;
}
