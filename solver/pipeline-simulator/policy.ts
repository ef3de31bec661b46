import type { Fleet, GranularityOption } from '../granularity/control.ts';

/** What a policy sees when it is asked. */
export interface PipelineView {
  now_ms: number;
  fleet: Fleet;
  /** A change is under way. */
  changing: boolean;
  /** Requests that no pipeline has taken; sequences in the pipelines. */
  waiting: number;
  running: number;
  /** With the devices and load times of this moment. */
  options: readonly GranularityOption[];
}

/** Who decides which pipelines there are. */
export interface PipelinePolicy {
  name: string;
  first: Fleet;
  always_on_devices: number;
  /** Takes only devices that nobody else uses. */
  whole_devices: boolean;
  /** Several micro-batches in a pipeline at once. */
  micro_batches: boolean;
  /** Time of a stage, as a multiple, by what else runs on its device then. */
  slowdown?: (now_ms: number) => number;
  /** Loading from storage, against the profile's. */
  load_share: number;
  arrived(now_ms: number): void;
  /** @param latency_ms of one pass of the request, on average */
  finished(now_ms: number, latency_ms: number): void;
  /** The fleet that is to be; undefined: as it is. */
  decide(view: PipelineView): Fleet | undefined;
}
