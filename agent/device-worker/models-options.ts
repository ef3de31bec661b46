import type { SharingSettings } from '../../solver/sharing/settings.ts';
import type { HpcserveError } from '../../spec/errors/error.ts';
import type { FabricPlace } from '../pipeline/fabric-frames.ts';
import type { ParkingFolder } from './compute/messages.ts';
import type { FromWorker } from './messages.ts';
import type { WorkerMetrics } from './metrics.ts';
import type { OutputLengthStore } from './output-length-store.ts';
import type { ProfileStore } from './profile-store.ts';

/** What the models of a worker are told of the device, and of the process around them. */
export interface ModelsOptions {
  threads: number;
  pool_bytes: number;
  /** See `ComputeThreadOptions`. */
  arena_bytes?: number | undefined;
  resident_bytes?: number | undefined;
  beside_bytes?: number | undefined;
  /** Where hashes of tensors are kept; absent: files do not share tensors. */
  hash_dir?: string;
  /** See `DevicePoolOptions`. */
  peers_socket?: string;
  /** See `ComputeThreadOptions`. */
  ggml_device: string | undefined;
  /** See `ComputeThreadOptions`. */
  parking?: ParkingFolder | undefined;
  /** See `ComputeThreadOptions`. */
  fabrics?: FabricPlace | undefined;
  settings: SharingSettings;
  step_ms_min: number;
  /** Absent: what is measured of models is forgotten with the worker. */
  profiles?: ProfileStore;
  /** Absent: so is how long answers were. */
  lengths?: OutputLengthStore;
  /** See `writeManifest`; absent: what is in the pool is not told. */
  manifest_file?: string;
  /** Longest measurement of a model of which nothing is kept. */
  profile_ms: number;
  warn: (text: string) => void;
  tell: (message: FromWorker) => void;
  metrics: WorkerMetrics;
  failed: (error: HpcserveError) => void;
  stall_ms: number;
}
