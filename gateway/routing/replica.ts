import { type Candidate, requestsAt } from '../../solver/routing/candidate.ts';
import type { FilteredFacts } from '../../solver/routing/filter.ts';
import type { PoolMember } from '../../solver/routing/pools.ts';
import { fullnessOf } from '../../solver/sharing/candidates.ts';
import { requestLoad } from '../../solver/streaming/request-load.ts';
import type { ModelLoad, ModelWeights } from '../../spec/agent-state.ts';
import type { PoolName } from '../../spec/model-pools.ts';
import type { PrefixCacheCounts } from '../../spec/prefix-cache.ts';
import {
  type DeviceDescription,
  provenProviderOf,
  type SessionModel,
  type SessionRecord,
} from '../../spec/session-record.ts';
import type { StreamedWeights } from '../../spec/streamed-weights.ts';
import { headers } from '../../spec/wire.ts';
import type { DeviceOnLink } from './device-on-link.ts';

/** One model on one session, as the router sees it. `T` is what the gateway keeps of a session. */
export class Replica<T> implements Candidate, PoolMember {
  readonly session: T;
  readonly session_id: string;
  readonly served: SessionModel;
  /** The model's name as a header field carries it: names may hold any character. */
  readonly modelField: string;
  /** Header pairs that every answer of this replica carries. */
  readonly answerHeaders: readonly string[];
  readonly facts: FilteredFacts;
  readonly native: boolean;
  readonly cpu: boolean;
  readonly job_end_time_ms: number | undefined;
  /** Until when its provider is proved, Unix ms. */
  readonly proven_until_ms: number | undefined;
  state: SessionModel['state'];
  running = 0;
  waiting = 0;
  max_sequences = 1;
  kv_tokens_total = 0;
  kv_tokens_used = 0;
  unreported = 0;
  /** Outlives this object: who asked holds the one that was there when it did. */
  #asked = { unanswered: 0 };
  too_slow = false;
  asleep = false;
  weights: ModelWeights | undefined;
  streamed: StreamedWeights | undefined;
  compute_ms: number | undefined;
  handover_tokens_min: number | undefined;
  prefix_cache: PrefixCacheCounts | undefined;
  /** All replicas of the session, this one included: they share its device. */
  beside: readonly Replica<T>[] = [];
  /** That device, with all that share its link. Absent: of a wrapped engine, and before the table has placed it. */
  on_link: DeviceOnLink | undefined;

  constructor(session: T, record: SessionRecord, served: SessionModel) {
    const { metadata, session_id } = record;
    const { devices, engine, provider, region, site, tier, node } = metadata;
    this.session = session;
    this.session_id = session_id;
    this.served = served;
    this.modelField = encodeURI(served.name);
    this.state = served.state;
    const { precision } = served;
    this.facts = {
      ...{ site, region, provider, tier, devices, precision },
      // What vouches for it may be over while it serves.
      get provider_id() {
        return provenProviderOf(record, Date.now());
      },
    };
    this.native = engine === 'native';
    this.cpu = devices.length > 0 && devices.every(({ kind, emulated }) => kind === 'cpu' && !emulated);
    this.proven_until_ms = record.proven_until_ms;
    this.job_end_time_ms = metadata.job_end_time_ms;
    const fields = [
      [headers.node, node],
      [headers.engine, engine ?? 'unknown'],
      [headers.session, session_id],
      [headers.precision, served.precision],
      [headers.model, this.modelField],
      [headers.device, deviceWords(devices)],
      [headers.provider, provider],
      [headers.provider_key, provenProviderOf(record, Date.now()) ?? 'unproven'],
      [headers.site, site],
    ] as const;
    this.answerHeaders = fields.flatMap(([name, value]) => [name, fieldText(value)]);
  }

  report(load: ModelLoad): void {
    this.state = load.state;
    this.running = load.running;
    this.waiting = load.waiting;
    this.max_sequences = Math.max(1, load.max_sequences);
    this.kv_tokens_total = load.kv_tokens_total;
    this.kv_tokens_used = load.kv_tokens_used;
    this.too_slow = load.too_slow === true;
    this.asleep = load.asleep === true;
    this.weights = load.weights;
    this.streamed = load.streamed;
    this.compute_ms = load.compute_ms;
    this.handover_tokens_min = load.handover_tokens_min;
    this.prefix_cache = load.prefix_cache;
    this.unreported = 0;
  }

  /** What is known of its load, where only the record of its session changed. */
  inherit(old: Replica<T>): void {
    this.running = old.running;
    this.waiting = old.waiting;
    this.max_sequences = old.max_sequences;
    this.kv_tokens_total = old.kv_tokens_total;
    this.kv_tokens_used = old.kv_tokens_used;
    this.unreported = old.unreported;
    this.#asked = old.#asked;
    this.too_slow = old.too_slow;
    this.asleep = old.asleep;
    this.weights = old.weights;
    this.streamed = old.streamed;
    this.compute_ms = old.compute_ms;
    this.handover_tokens_min = old.handover_tokens_min;
    this.prefix_cache = old.prefix_cache;
  }

  get unanswered(): number {
    return this.#asked.unanswered;
  }

  /**
   * Counts a request that is sent to it.
   * @returns to be called once, when something of an answer comes, or none will
   */
  asked(): () => void {
    const asked = this.#asked;
    asked.unanswered++;
    this.unreported++;
    return () => {
      asked.unanswered--;
    };
  }

  get pool(): PoolName | undefined {
    return this.served.pool;
  }

  get device_taken(): boolean {
    return this.beside.some((other) => other !== this && other.#returns);
  }

  get device_fullness(): number {
    const standing = this.beside.filter(({ weights }) => weights?.resting !== true);
    const requests = standing.reduce((sum, other) => sum + requestsAt(other), 0);
    return fullnessOf(this.cpu, standing.length, requests, this.weights?.promised_share ?? 0);
  }

  get budget_load(): number | undefined {
    if (this.streamed === undefined || this.on_link === undefined) return undefined;
    const { name } = this.served;
    const told = this.on_link.told(name);
    return requestLoad(name, told.own, told.all);
  }

  /** The model is on its way back to its device: it rests, and was asked for. */
  get #returns(): boolean {
    return this.weights?.resting === true && requestsAt(this) > 0;
  }
}

/** `4x A100-40GB`, `GH200 (emulated)`; what stands in for a device is said. */
export function deviceWords(devices: readonly DeviceDescription[]): string {
  const counts = new Map<string, number>();
  for (const { model, emulated } of devices) {
    const words = emulated ? `${model} (emulated)` : model;
    counts.set(words, (counts.get(words) ?? 0) + 1);
  }
  return (
    [...counts].map(([words, count]) => (count > 1 ? `${count}x ${words}` : words)).join(', ') || 'unknown'
  );
}

/** Header fields are ASCII here: what is not would be read differently by every client. */
function fieldText(value: string): string {
  return value.replace(/[^\x20-\x7e]/g, '?');
}
