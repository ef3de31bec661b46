import type { MessagePort } from 'node:worker_threads';
import type { ErrorJson } from '../../spec/errors/error.ts';
import type { FrameBytes } from './frame.ts';

/** What the thread of a ring is started with. */
export interface RingThreadData {
  port: MessagePort;
  /** Counted up with every message: wakes the thread that computes. */
  signal: Int32Array;
  listen: string;
  next: string;
}

/** From the thread that computes: a frame for the stage behind, or that it is over. */
export type ToRing = { type: 'frame'; frame: FrameBytes } | { type: 'end' };

export type FromRing =
  | { type: 'up' }
  /** @property came_ms by `monotonic_ms`, when the frame was whole */
  | { type: 'frame'; frame: FrameBytes; came_ms: number }
  /** The ring is broken; it comes up again once both neighbours are there. */
  | { type: 'down'; because: string }
  /** A neighbour is of another version: the ring does not come up while it is there. */
  | { type: 'foreign'; error: ErrorJson };
