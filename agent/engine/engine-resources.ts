import type { BatchExecutor } from './batch-executor.ts';
import type { KvSource } from './kv-storage.ts';
import type { ModelFile } from './model-file.ts';
import type { ParkingDisk } from './parking-disk.ts';
import type { ScratchSource } from './scratch.ts';
import type { LoadedWeights } from './weights.ts';

/** What an engine is given instead of making it itself. */
export interface EngineResources {
  /** The model file of the options. */
  file?: ModelFile;
  /** Its weights, the engine's own from now on; absent: it loads them into memory of its own. */
  weights?: LoadedWeights;
  /** Absent: memory of its own, all of it taken at once. */
  kv?: KvSource;
  /** Absent: memory of its own. */
  scratch?: ScratchSource;
  /** Where KV of sequences may wait that give way; absent: in host memory alone. */
  disk?: ParkingDisk | undefined;
  /** What computes, the engine's own from now on, in place of a stage that it makes of the others. */
  executor?: BatchExecutor;
}
