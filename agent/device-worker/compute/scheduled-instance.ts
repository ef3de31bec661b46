/** The models of a device as their schedule keeps them: what decisions see, and what they are carried out by. */
import type { InstanceView, RequestView } from '../../../solver/sharing/device-view.ts';
import type { GrowingProfile } from '../../../solver/sharing/growing-profile.ts';
import { recycleAt } from '../../../solver/sharing/keep-alive.ts';
import type { SharingSettings } from '../../../solver/sharing/settings.ts';
import { type Slo, sloOf } from '../../../solver/sharing/slo.ts';
import { computeTime_ms, type MeasuredPace } from '../../../solver/streaming/measured-pace.ts';
import type { Engine, EngineStats, SwapPlace } from '../../../spec/engine-contract.ts';
import type { Submission } from './messages.ts';

export interface ScheduledModel {
  name: string;
  /** What its deployment promises; absent: nothing. */
  slo?: Slo;
  max_sequences: number;
  prefill_chunk_tokens: number;
  /** Longest sequence that it takes. */
  tokens_max: number;
}

export interface ScheduledRequest extends RequestView {
  /** Tokens of its answer at most. */
  output_tokens_max: number;
  reasoning: boolean;
  /** It ends with its prompt: an embedding. */
  embeds: boolean;
  /** It can be broken off, and goes on elsewhere. */
  movable: boolean;
  /** Its KV is in host memory or on disk, so many bytes; it waits until there is room for it. */
  parked_bytes: number;
  /** Where it is, or was last. */
  parked_at: SwapPlace;
}

export type ScheduledEngine = Pick<
  Engine,
  | 'setKvBudget'
  | 'kv_bytes_used'
  | 'kvBytesOf'
  | 'parks_on_disk'
  | 'parkSequence'
  | 'restoreSequence'
  | 'recomputeSequence'
  | 'progress'
  | 'stats'
>;

export interface ScheduledInstance extends InstanceView {
  requests: ScheduledRequest[];
  readonly engine: ScheduledEngine;
  slo: Slo | undefined;
  growing: GrowingProfile;
  max_sequences: number;
  working_bytes: number;
  kv_bytes_max: number;
  tokens_max: number;
  prefill_chunk_tokens_max: number;
  places: number;
  kv_used_bytes: number;
  /** Everything that is alive in its engine; `requests` are those that can run. */
  readonly live: Map<number, ScheduledRequest>;
  waiting: number;
  /** A sequence found no KV: none is begun before one of the device ends, since all share its pool. */
  kv_full: boolean;
  /** Of streamed weights: what its iterations take, and for how long all of them waited for weights by now. */
  pace: MeasuredPace | undefined;
  waited_ms: number;
  /** Its stages change: it is idle all the same, and does not rest before that is over. */
  changes_stages: boolean;
}

type Sizes = Pick<InstanceView, 'id' | 'model' | 'weight_bytes' | 'kv_bytes' | 'kv_bytes_per_token'> & {
  working_bytes: number;
  kv_whole: boolean;
  tokens_max: number;
  kv_bytes_max: number;
};

export function sizesOf(
  { name, tokens_max }: Pick<ScheduledModel, 'name' | 'tokens_max'>,
  stats: EngineStats,
): Sizes {
  return {
    id: name,
    model: name,
    tokens_max,
    // The arena is no model's own.
    weight_bytes: stats.streamed ? 0 : stats.weight_bytes,
    working_bytes: stats.working_bytes,
    kv_bytes: 0,
    // The stages of a pipeline take theirs once.
    kv_whole: stats.stages !== undefined,
    kv_bytes_max: stats.kv_bytes,
    kv_bytes_per_token: stats.kv_bytes / Math.max(1, stats.kv_tokens_total),
  };
}

/** See `compute_ms` of `ModelLoad`. Of streamed weights a profile has the wait for them, too: then it is their pace. */
export function stepTime_ms(
  { requests, pace, profile }: Pick<ScheduledInstance, 'requests' | 'pace' | 'profile'>,
  { streamed }: Pick<EngineStats, 'streamed'>,
): number | undefined {
  const decoding = requests.filter(({ prefill_tokens_left }) => prefill_tokens_left === 0);
  const batch = Math.max(1, decoding.length);
  if (streamed) return pace && computeTime_ms(pace, batch);
  const tokens = decoding.reduce(
    (sum, { input_tokens, output_tokens }) => sum + input_tokens + output_tokens,
    0,
  );
  return profile.decode_ms(batch, tokens / batch);
}

/** A request as it comes. @param slo of its model; absent: nothing is promised to it */
export function scheduledRequest(
  submission: Submission,
  slo: Slo | undefined,
  now_ms: number,
): ScheduledRequest {
  const { id, tokens, sampling, max_new_tokens, arrival_ms, reasoning } = submission;
  const embeds = sampling === undefined;
  return {
    id: String(id),
    arrival_ms: Math.min(arrival_ms, now_ms),
    input_tokens: tokens.length,
    output_tokens: 0,
    expected_output_tokens: 0,
    output_tokens_max: embeds ? 0 : max_new_tokens,
    prefill_tokens_left: tokens.length,
    available_at_ms: 0,
    service_level: sloOf(slo ?? {}, tokens.length),
    background: slo === undefined || embeds,
    reasoning,
    embeds,
    movable: submission.movable,
    parked_bytes: 0,
    parked_at: 'memory',
  };
}

/** Whether it may go for whoever needs its memory: nobody asks for it, and it is as it is to be. */
export function mayRest({ live, changes_stages }: ScheduledInstance): boolean {
  return live.size === 0 && !changes_stages;
}

/** Of the instances that may rest, the one without requests for longest. */
export function longestIdle(instances: readonly ScheduledInstance[]): ScheduledInstance | undefined {
  let longest: ScheduledInstance | undefined;
  for (const instance of instances) {
    if (!mayRest(instance)) continue;
    if (!longest || (instance.idle_since_ms ?? 0) < (longest.idle_since_ms ?? 0)) longest = instance;
  }
  return longest;
}

/** The idle instance whose keep-alive is over first, and when that is. */
export function nextToRecycle(
  instances: readonly ScheduledInstance[],
  settings: SharingSettings,
): { model: string; at_ms: number } | undefined {
  let next: { model: string; at_ms: number } | undefined;
  for (const instance of instances) {
    const at_ms = mayRest(instance) ? recycleAt(instance, settings) : Number.POSITIVE_INFINITY;
    if (Number.isFinite(at_ms) && at_ms < (next?.at_ms ?? Number.POSITIVE_INFINITY))
      next = { model: instance.model, at_ms };
  }
  return next;
}
