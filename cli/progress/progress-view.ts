import type { ProgressEvent } from '../../spec/events.ts';

/** One way of showing the event stream. */
export interface ProgressView {
  show(event: ProgressEvent): void;
  /** Leaves the terminal as it should be for what is printed next. */
  close(): void;
}
