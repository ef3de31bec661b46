/** Messages between the main thread of a device worker, which does I/O and text, and its compute thread. */
import type { MessagePort } from 'node:worker_threads';
import type { MemoryPiece } from '../../../native/fabric/memory.ts';
import type { PipelineLayout } from '../../../solver/refactoring/layout.ts';
import type { KeptProfile } from '../../../solver/sharing/growing-profile.ts';
import type { KeptLengths } from '../../../solver/sharing/output-lengths.ts';
import type { SharingSettings } from '../../../solver/sharing/settings.ts';
import type { Slo } from '../../../solver/sharing/slo.ts';
import type { ModelWeights } from '../../../spec/agent-state.ts';
import type { DeviceReport } from '../../../spec/device-report.ts';
import type { SharedDeviceView } from '../../../spec/device-view.ts';
import type {
  EngineOptions,
  EngineStats,
  FinishReason,
  LoadProgress,
  ModelInfo,
  SampledToken,
} from '../../../spec/engine-contract.ts';
import type { ErrorJson } from '../../../spec/errors/error.ts';
import type { PoolReport } from '../../../spec/pool-report.ts';
import type { WeightSources } from '../../../spec/weight-sources.ts';
import type { KvRange } from '../../engine/kv-runs.ts';
import type { DevicePoolOptions } from '../../memory/device-pool.ts';
import type { TensorRange } from '../../memory/peers/peer-messages.ts';
import type { ManifestModel } from '../../memory/pool-manifest.ts';
import type { FabricPlace } from '../../pipeline/fabric-frames.ts';
import type { KvPiece } from '../../pipeline/layout-messages.ts';
import type { RefactoringReport } from '../../pipeline/live-refactoring.ts';
import type { PipelinePlace } from '../../pipeline/pipeline-place.ts';
import type { WayNews } from '../../pipeline/ring-messages.ts';
import type { StreamedPart, StreamingShare } from '../../streaming/streamed-models.ts';
import type { SamplingParameters } from '../../text/sampling/parameters.ts';
import type { ReasoningLimit } from '../../text/sampling/reasoning-budget.ts';
import type { Utf8Tokens } from '../../text/sampling/utf8-constraint.ts';
import type { KvAsk, KvShapeOfModel, KvShapeOfStage, KvTold } from './kv-messages.ts';

/** What the compute thread is started with. */
export interface ComputeThreadData {
  port: MessagePort;
  /** Words of `pulse`. */
  pulse: Int32Array;
  settings: SharingSettings;
  step_ms_min: number;
  pool: Pick<DevicePoolOptions, 'pool_bytes' | 'threads' | 'peers_socket'>;
  hash_dir?: string;
  /** See `ComputeThreadOptions`. */
  ggml_device?: string;
  streaming?: StreamingShare;
  parking?: ParkingFolder;
  /** See `RingThreadData`. */
  fabrics?: FabricPlace;
}

/** Where KV of requests may wait on a disk of the node that gave way. */
export interface ParkingFolder {
  folder: string;
  bytes_max: number;
}

/** A sequence as the compute thread gets it: plain data. */
export interface Submission {
  id: number;
  model: string;
  /** Prompt, and after it the tokens of an answer that is continued. */
  tokens: Int32Array;
  /** How many of the tokens are the prompt. */
  n_prompt: number;
  /** Known tokens that follow `tokens`, sampled again for their log probabilities. */
  forced?: number[];
  /** Absent: an embedding. */
  sampling?: SamplingParameters;
  grammar?: GrammarConstraint;
  reasoning_limit?: ReasoningLimit;
  /** Beyond the tokens that are already there. */
  max_new_tokens: number;
  /** When the request came, by `monotonic_ms`. */
  arrival_ms: number;
  /** The model may reason before it answers. */
  reasoning: boolean;
  /** Let in whatever it does to others: a part of an answer that has begun, here or on another replica. */
  certain: boolean;
  /** It can be broken off here, and goes on elsewhere from the tokens that are out. */
  movable: boolean;
  /** The same, as often as it must be: its node goes. */
  continuable: boolean;
  /** The same, at any time before it has ended: a replica of the decode pool may go on with it. */
  handover: boolean;
  /** Whose it is: sequences of one answer, its choices, end together. Unique in this worker. */
  answer: number;
  /** Of the choices of its answer, from 0 on. */
  choice: number;
  /** What its keys and values are called that came here before it. */
  kv?: string | undefined;
  stop_tokens: number[];
  /** See `SequenceRequest`. */
  cache_scope?: string;
  prompt_logprobs?: number;
}

/** The compute thread's part of a `DeviceReport`. */
export interface ScheduleReport
  extends Pick<DeviceReport, 'instances' | 'resting' | 'scheduler' | 'decisions'> {
  /** Its device as those see it who place requests. */
  view: SharedDeviceView;
  /** Absent before the first model. */
  pool?: PoolReport;
}

export interface GrammarConstraint {
  gbnf: string;
  /** The grammar begins once this text was generated; absent: at once. */
  after?: string;
}

/** Of tensors in the pool, by the SHA-256 of their bytes: which of these are there, or some bytes of one. */
export type TensorsAsk = { contents: readonly string[] } | { range: TensorRange };
/** `held`: indices of `contents`. `bytes`: absent where the tensor is not there any more. */
export type TensorsTold = { held: number[] } | { bytes: Uint8Array<ArrayBuffer> | undefined };

export type LoadMessage = ToCompute & { type: 'load' };

export type ToCompute =
  | {
      type: 'load';
      name: string;
      options: Omit<EngineOptions, 'on_progress'>;
      /** It is one stage of a pipeline; absent: all of the model. */
      pipeline?: PipelinePlace;
      /** Its weights stay in host memory. */
      streamed?: StreamedPart;
      /** Address of the llama_vocab that the main thread keeps open. */
      vocabulary: bigint;
      utf8: Utf8Tokens;
      /** What its deployment promises; absent: nothing. */
      slo?: Slo;
      /** What was learned of it on this device before; absent: it is measured now, for so long at most. */
      profile?: KeptProfile;
      profile_ms: number;
      /** How long its answers were before; absent: nothing is known. */
      lengths?: KeptLengths;
      /** α of Equation 2; absent: 1. */
      latency_sensitivity?: number;
    }
  /** A layout of a pipeline is to come in which this device has another stage: the message says which. */
  | { type: 'prepare'; refactoring: number; load: LoadMessage }
  /** That layout does not come. */
  | { type: 'unprepare'; refactoring: number; name: string }
  /** The pipeline whose coordinator this device is changes its layout. */
  | { type: 'refactor'; id: number; to: PipelineLayout; load: LoadMessage }
  | { type: 'cancel_refactoring'; name: string; because: string }
  | { type: 'unload'; name: string }
  /** The requests of a model were taken away: its instance rests, unless others came. */
  | { type: 'leave'; name: string; because: string }
  | { type: 'submit'; submission: Submission }
  | { type: 'cancel'; model: string; id: number }
  | { type: 'report'; id: number }
  | { type: 'kv'; ask: number; asked: KvAsk }
  /** Rows that were to leave have, or why not. */
  | { type: 'rows_sent'; id: number; because?: string }
  | { type: 'tensors'; ask: number; asked: TensorsAsk }
  /** The worker is about to go: what is in the pool is told. */
  | { type: 'manifest' }
  /** The contents of a model file were hashed: other files that have the same tensors can share them. */
  | { type: 'learned'; path: string }
  | { type: 'stop' };

/** One sequence's part of an iteration. */
export interface TokenOutput {
  id: number;
  token?: SampledToken;
  finish?: FinishReason;
  error?: string;
  /** See `SequenceOutput`. */
  short_of_memory?: true;
  embedding?: Float32Array;
  prompt_logprobs?: SampledToken[];
  cached_tokens?: number;
}

/** The device computes no more: the thread ends, and the worker is to. */
export interface DeviceFailed {
  type: 'device_failed';
  error: ErrorJson;
}

export type FromCompute =
  | ({ type: 'progress'; name: string } & LoadProgress)
  /** The weights of a model, or of a stage of it, are in their places; `because`: how they came, in words. */
  | { type: 'weights_loaded'; name: string; loaded: WeightSources; because: string }
  /**
   * `kv`: absent where its sequences cannot move to other workers. `stage_kv`: of a stage, absent where its rows
   * cannot move to other stages.
   */
  | {
      type: 'loaded';
      name: string;
      info: ModelInfo;
      stats: EngineStats;
      kv?: KvShapeOfModel;
      stage_kv?: KvShapeOfStage;
    }
  /** Rows of a stage are to go to another worker: see `StageRows`. */
  | {
      type: 'rows';
      id: number;
      model: string;
      refactoring: number;
      piece: KvPiece;
      layers: KvRange;
      /** How many of each matrix. */
      rows: number;
      /** Where they lie; undefined where others cannot address that. */
      pieces: MemoryPiece[] | undefined;
    }
  | { type: 'load_failed'; name: string; error: ErrorJson }
  /** Kernels that are wrong on this CPU, all that are known by now: plain ones take their place. */
  | { type: 'kernels_left_out'; errors: ErrorJson[] }
  /** The pool is smaller than it was to be: others have the device's memory, or the kernel gives no more. */
  | { type: 'pool_cut'; error: ErrorJson }
  /** Of frames between the stages of a pipeline. */
  | { type: 'frames'; news: WayNews }
  | { type: 'unloaded'; name: string }
  /**
   * Of its stages of a pipeline the device computes another one: that of this change, or the one before any. `stats`
   * are those of that stage.
   */
  | { type: 'stage'; name: string; refactoring: number | undefined; stats: EngineStats }
  /** A change of layout has ended, or cannot begin. */
  | {
      type: 'refactored';
      name: string;
      id: number;
      report?: RefactoringReport;
      error?: ErrorJson;
    }
  /** What lies in the pool of each model that was loaded; told when it changed. */
  | { type: 'weights'; models: { name: string; weights: ModelWeights }[] }
  /**
   * What is known now of how fast a model is here, and how long its answers: after it was measured, now and then, and
   * before it goes.
   */
  | { type: 'profile'; name: string; profile: KeptProfile; too_slow: boolean; lengths?: KeptLengths }
  | { type: 'report'; id: number; report: ScheduleReport }
  | { type: 'kv'; ask: number; told?: KvTold; error?: ErrorJson }
  | { type: 'tensors'; ask: number; told: TensorsTold }
  | { type: 'manifest'; models: ManifestModel[] }
  | { type: 'admitted'; id: number }
  | { type: 'refused'; id: number; error: ErrorJson }
  | {
      type: 'step';
      name: string;
      outputs: TokenOutput[];
      stats: EngineStats;
      /** See `ModelLoad`. */
      compute_ms: number | undefined;
      prefill_tokens: number;
      decode_tokens: number;
      elapsed_us: number;
    }
  /** An iteration threw: the engine is closed, its sequences are lost; other models go on. */
  | { type: 'model_failed'; name: string; error: ErrorJson };
