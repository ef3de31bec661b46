import type { MessagePort } from 'node:worker_threads';
import type { ErrorJson } from '../../spec/errors/error.ts';
import type { FabricPlace } from './fabric-frames.ts';
import type { FrameBytes } from './frame.ts';

/** What the thread of a ring is started with. */
export interface RingThreadData {
  port: MessagePort;
  /** Counted up with every message: wakes the thread that computes. */
  signal: Int32Array;
  listen: string;
  next: string;
  /** How frames may go to another node past its agents; absent: they do not. */
  fabrics: FabricPlace | undefined;
}

/** From the thread that computes: a frame for the stage behind, or that it is over. */
export type ToRing = { type: 'frame'; frame: FrameBytes } | { type: 'end' };

/**
 * How long frames go to the stage behind of a ring, which its socket names, or come to it (`to` before the socket);
 * with `connection` all begins anew. Or a
 * provider of libfabric that should work and does not.
 */
export type WayNews =
  | { type: 'way'; ring: string; way: string; provider?: string }
  | { type: 'notice'; ring: string; provider: string; error: ErrorJson };
/** The same, of the ring that the reader has. */
export type OwnNews =
  | { type: 'way'; way: string; provider?: string }
  | { type: 'notice'; provider: string; error: ErrorJson };

export type FromRing =
  | WayNews
  | { type: 'up' }
  /**
   * @property came_ms by `monotonic_ms`, when the frame was whole
   * @property is_checked its checksum was found right
   */
  | { type: 'frame'; frame: FrameBytes; came_ms: number; is_checked: boolean }
  /** The ring is broken; it comes up again once both neighbours are there. */
  | { type: 'down'; because: string }
  /** A neighbour is of another version: the ring does not come up while it is there. */
  | { type: 'foreign'; error: ErrorJson };
