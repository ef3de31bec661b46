/**
 * Messages between a node agent and a device worker, over Node's IPC channel (serialization: advanced).
 * Requests for tokens do not travel here: the worker answers OpenAI's paths on a unix socket.
 */

import type { PipelineLayout } from '../../solver/refactoring/layout.ts';
import type { SharingSettings } from '../../solver/sharing/settings.ts';
import type { ModelLoad } from '../../spec/agent-state.ts';
import type { EngineStats, KernelsOption, KvType, LoadProgress } from '../../spec/engine-contract.ts';
import type { ErrorJson } from '../../spec/errors/error.ts';
import type { PoolName } from '../../spec/model-pools.ts';
import type { MovesReport } from '../../spec/moves-report.ts';
import type { ModelState } from '../../spec/session-record.ts';
import type { StreamedWeights } from '../../spec/streamed-weights.ts';
import type { WeightSources } from '../../spec/weight-sources.ts';
import type { RefactoringReport } from '../pipeline/live-refactoring.ts';
import type { PipelinePlace } from '../pipeline/pipeline-place.ts';
import type { WayNews } from '../pipeline/ring-messages.ts';
import type { ParkingFolder } from './compute/messages.ts';
import type { MovesPlace } from './moving/moves-place.ts';
import type { WorkerLimits } from './worker-options.ts';

export interface NativeModel {
  /** Served name; requests name it or one of the aliases. */
  name: string;
  aliases: string[];
  model_path: string;
  chat_template_file?: string;
  context_tokens: number;
  max_sequences: number;
  prefill_chunk_tokens: number;
  kv_tokens: number;
  kv_type: KvType;
  /** See `EngineOptions`. */
  batch_invariant?: boolean | undefined;
  /** See `EngineOptions`; absent: `auto`. */
  kernels?: KernelsOption;
  /** α of Tangram's Equation 2: how much a second of loading it matters; absent: 1, as every other model. */
  latency_sensitivity?: number;
  /** Absent: they lie on the device. */
  weights?: 'streamed';
  /** Of those that are streamed: what layers that stay may take of the device; absent: nothing. */
  resident_bytes?: number | undefined;
  /** Of those that are streamed over a link of others, too: their part of its rate; absent: all of it. */
  link_share?: number | undefined;
  /** Of those that are streamed: what the plan takes the link to give; absent: it has no figure for it. */
  link_bytes_per_s?: number | undefined;
  /** Of those that are streamed: page-locked copies of them, at most; absent: no product would read any. */
  locked_bytes?: number | undefined;
  /** It is one stage of a pipeline; absent: all of the model. Requests come to the first stage alone. */
  pipeline?: PipelinePlace;
  /** It computes prompts, or goes on with answers whose KV it is sent; absent: both. */
  pool?: PoolName;
  /** What its deployment promises; absent: nothing, its requests run in time that promises spare. */
  slo?: { ttft_ms?: number; tpot_ms?: number };
}

export type ToWorker =
  | {
      type: 'configure';
      /** Unix socket to listen on, in a 0700 folder, under 107 characters. */
      socket_path: string;
      threads: number;
      /** Of the device's memory pool, at most: weights and KV caches of all its models. */
      pool_bytes: number;
      /** Of the pool, what weights are streamed through; absent: none are. */
      arena_bytes?: number;
      /** Of the pool, for layers of such models that stay; absent: none do. */
      resident_bytes?: number;
      /** What the plan counted on for everything else of the device; where the pool is smaller, fewer layers stay. */
      beside_bytes?: number;
      /** Cores of the device, where they are its own; the worker's threads stay on them. */
      cores?: number[];
      library_dir?: string;
      /** What computes, as ggml names it (`Vulkan0`), with all of the pool in its memory; absent: the CPU. */
      ggml_device?: string;
      /** What the device is to all processes of its node; absent: it is the CPU, which workers divide by cores. */
      device_identity?: string;
      heartbeat_ms: number;
      /** Shown in logs and metrics. */
      device: string;
      /** Least time of an iteration, where the device is emulated and its speed declared, ms. */
      step_ms_min?: number;
      /** Where what was learned of models on this device is kept; absent: nowhere. */
      cache_dir?: string;
      /**
       * What was in the pool is written here when the worker is told to drain, and brought into the page cache where it
       * is found.
       */
      manifest_file?: string;
      /** Unix socket on which the agent reaches peers that have tensors in memory; absent: all is read from files. */
      peers_socket?: string;
      /** Where KV of requests may wait on disk that gave way; absent: it waits in host memory. */
      parking?: ParkingFolder;
      /** How running answers may move to other workers; absent: from their tokens alone. */
      moves?: MovesPlace & { session_id: string };
      /** How the device is shared, where it differs from `workerSharing`. */
      sharing?: Partial<SharingSettings>;
      /** Bounds that differ from `defaultLimits`. */
      limits?: Partial<WorkerLimits>;
    }
  | { type: 'load'; model: NativeModel }
  /** A layout of a pipeline is to come in which this device has the stage of `model.pipeline`. */
  | { type: 'prepare'; refactoring: number; model: NativeModel }
  /** That layout does not come: what was prepared for it is given back, unless it serves by now. */
  | { type: 'unprepare'; refactoring: number; name: string }
  /** The pipeline whose first stage is here changes its layout to this; `model.pipeline` is its place in it. */
  | { type: 'refactor'; refactoring: number; to: PipelineLayout; model: NativeModel }
  | { type: 'cancel_refactoring'; name: string; because: string }
  | { type: 'unload'; name: string }
  /** Stop admitting; finish what runs. */
  | { type: 'drain' }
  | { type: 'stop' };

export type FromWorker =
  | { type: 'listening'; library_version: string; isa: string[] }
  | ({ type: 'progress'; name: string } & LoadProgress)
  /** The weights of a model, or of a stage of it, are in their places; `because`: how they came, in words. */
  | { type: 'weights_loaded'; name: string; loaded: WeightSources; because: string }
  | {
      type: 'model';
      name: string;
      state: ModelState;
      precision?: string;
      /** Of one that serves: see `EngineStats`. */
      layouts?: EngineStats['layouts'];
      streamed?: StreamedWeights | undefined;
      error?: ErrorJson;
    }
  | { type: 'load_report'; models: ModelLoad[] }
  /** A change of layout has ended, or could not begin. */
  | { type: 'refactored'; name: string; refactoring: number; report?: RefactoringReport; error?: ErrorJson }
  /** Kernels that are wrong on this CPU, all that are known by now: plain ones take their place. */
  | { type: 'kernels_left_out'; errors: ErrorJson[] }
  /** The pool is smaller than it was to be, with why. */
  | { type: 'pool_cut'; error: ErrorJson }
  /** How frames travel between the stages of a pipeline. */
  | { type: 'frames'; news: WayNews }
  /** What moved to others and came from them with keys and values, after each change. */
  | { type: 'moves'; report: MovesReport }
  | { type: 'drained' }
  /** The worker cannot go on; it exits after this. */
  | { type: 'fatal'; error: ErrorJson };
