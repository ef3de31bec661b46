/** Where a stage stands in the pipeline of its model, and how its neighbours are reached. */
export interface PipelinePlace {
  /** Counted from 0: the coordinator, which has the requests. */
  stage: number;
  stages: number;
  /** Operators [begin, end). */
  begin: number;
  end: number;
  /** Unix socket in a 0700 folder on which the stage before this one is heard; under 107 characters. */
  listen: string;
  /** The one on which the stage behind this one is heard: of the last one, the coordinator's. */
  next: string;
  /** Of the device, as people know it. */
  device: string;
  /** What the device is among all of the pipeline's: no two stages are on one. */
  device_identity: string;
  /** Of the worker in the mesh. */
  session?: string | undefined;
}
