/**
 * What the decisions of this folder see of a device: plain data, which a worker keeps of what it runs and a gateway
 * hears from workers. Times are milliseconds of one clock, bytes are bytes, lengths are tokens.
 */
import type { IterationProfile } from './profile.ts';
import type { TimedRequest } from './slo.ts';

export interface RequestView extends TimedRequest {
  id: string;
  input_tokens: number;
  /** Tokens of the whole answer, as history says (`OutputLengths`). */
  expected_output_tokens: number;
  /**
   * Tokens of prompt and answer that are not computed yet: 0 while it decodes. After a move it is all of them again.
   */
  prefill_tokens_left: number;
  /** When it can run at all: its parked KV is being restored until then. */
  available_at_ms: number;
  /**
   * Nothing is promised to it: it has turns by its SLO as others do, but only while no promise breaks by them. So are
   * all requests of an instance, or prompts that are not followed by decode steps: steps of one batch are one.
   */
  background?: boolean;
}

/** Where KV of a request waits, or a way to where it goes on. */
export interface ParkingPlace {
  /** Room for parked KV there. */
  free_bytes: number;
  /** From there back to the device, or to the one it moves to. */
  bytes_per_s: number;
  /** Before the first byte. */
  latency_ms: number;
}

/** A model on a device, with the requests it runs there. */
export interface InstanceView {
  id: string;
  model: string;
  profile: IterationProfile;
  /** When its weights are there. */
  ready_at_ms: number;
  /** Set aside by the reservation station for weights and for KV. */
  weight_bytes: number;
  kv_bytes: number;
  /** Of the pool beside those: results of its graphs, rows that only pad. Absent: nothing is known of it. */
  working_bytes?: number | undefined;
  /** Its KV is taken as a whole while it is there, as that of a pipeline: none of it can be others'. */
  kv_whole?: boolean | undefined;
  kv_bytes_per_token: number;
  /** Longest sequence that it takes; absent: the settings' least KV room is what counts. */
  tokens_max?: number;
  /** Without requests it gives up its KV and stays; absent: it goes, for whoever needs its memory. */
  stays?: boolean;
  /** KV that it can ever have; absent: as much as there is. */
  kv_bytes_max?: number;
  /** Further requests that it takes at most; absent: as many as memory and time allow. */
  places?: number;
  /** Its requests cannot go on elsewhere. */
  fixed?: boolean;
  /** How its KV goes to instances of its model that stand elsewhere; absent: it does not. */
  carry?: ParkingPlace;
  /** Most prompt tokens of one of its iterations, where that is less than the settings say. */
  prefill_chunk_tokens_max?: number | undefined;
  /** In the order in which they came. */
  requests: RequestView[];
  /** Since when it has had no request; undefined while it has one. */
  idle_since_ms?: number;
}

export interface RunningIteration {
  instance: string;
  /** The request whose prompt it computes; absent: a decode step of all that decode. */
  request?: string;
  /** Prompt tokens of it. */
  tokens: number;
  /** Estimated end. */
  ends_ms: number;
}

export interface DeviceView {
  id: string;
  /** CPUs come first wherever they meet the SLO. */
  kind: 'cpu' | 'gpu';
  /** Instruction set or device in use, for people: `AMX`, `AVX-512`, `A100`. */
  compute: string;
  instances: InstanceView[];
  /** The iteration that runs now; its tokens are not yet counted in the requests. */
  running?: RunningIteration;
  /**
   * The device's memory pool; how much of it is promised, and how much is in use until all is given up that shall be.
   */
  pool_bytes: number;
  budget_bytes: number;
  held_bytes: number;
  /** How long memory takes to be given up. */
  release_ms: number;
  /** Most instances beside each other; absent: as many as memory and time allow. */
  instances_max?: number;
}

/** A model as an instance of it would run on a certain device. */
export interface ModelOnDevice {
  model: string;
  profile: IterationProfile;
  weight_bytes: number;
  /** See `InstanceView`. */
  working_bytes?: number | undefined;
  kv_bytes_per_token: number;
  /** Longest sequence that it takes. */
  tokens_max?: number;
  /** KV that it can ever have; absent: as much as there is. */
  kv_bytes_max?: number;
  /** See `InstanceView`. */
  prefill_chunk_tokens_max?: number;
  /** From the order to load until its first iteration; bytes that lie there already take no time. */
  load_ms: number;
}

/** What a model is on a device; undefined where it cannot run there at all. */
export type ModelLookup = (model: string, device: DeviceView) => ModelOnDevice | undefined;

/** A request that asks to be taken. */
export interface ArrivingRequest extends RequestView {
  model: string;
}

/** What an instance has of the pool for as long as it stands, whatever its KV is. */
export function standing_bytes({
  weight_bytes,
  working_bytes = 0,
}: Pick<InstanceView, 'weight_bytes' | 'working_bytes'>): number {
  return weight_bytes + working_bytes;
}

/** Tokens of a request that are in the KV cache, or will be once its prompt is done. */
export function lengthOf(request: RequestView): number {
  return request.input_tokens + request.output_tokens;
}

/** Tokens it is expected to have at its end: I + max(O, Ō) of LLM-Mesh Eq. 2. */
export function finalLengthOf(request: RequestView): number {
  return request.input_tokens + Math.max(request.output_tokens, request.expected_output_tokens);
}
