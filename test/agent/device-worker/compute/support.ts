/** The schedule of a device over engines that tell what a test says. */
import {
  type ChosenIteration,
  DeviceSchedule,
} from '../../../../agent/device-worker/compute/device-schedule.ts';
import type { Submission } from '../../../../agent/device-worker/compute/messages.ts';
import type { ParkingDiskView } from '../../../../agent/device-worker/compute/parked-requests.ts';
import type { ScheduledModel } from '../../../../agent/device-worker/compute/scheduled-instance.ts';
import { GrowingProfile } from '../../../../solver/sharing/growing-profile.ts';
import { defaultSharingSettings } from '../../../../solver/sharing/settings.ts';
import type { Slo } from '../../../../solver/sharing/slo.ts';
import type {
  EngineStats,
  SequenceProgress,
  StepReport,
  SwapPlace,
} from '../../../../spec/engine-contract.ts';

export const kv_bytes_per_token = 100;
export const pool_bytes = 100_000_000;

/** What an engine tells of its sequences, and where it has room. */
export class ToldEngine {
  kv_bytes_used = 0;
  budget_bytes = 0;
  hasRoom = true;
  sequences: SequenceProgress[] = [];
  recomputed: number[] = [];
  streamed: EngineStats['streamed'];
  working_bytes = 0;
  /** Of a pipeline. */
  stages: EngineStats['stages'];
  readonly holds = new Set<number>();
  parks_on_disk = false;
  takes_disk = true;
  parked_bytes = 1600;
  /** Where each was parked that was. */
  parked: [id: number, place: SwapPlace][] = [];

  setKvBudget(bytes: number): number {
    this.budget_bytes = bytes;
    return bytes;
  }

  kvBytesOf(id: number): number {
    return this.holds.has(id) ? 1600 : 0;
  }

  parkSequence(id: number, place: SwapPlace): number | undefined {
    if (place === 'disk' && !this.takes_disk) return undefined;
    this.parked.push([id, place]);
    this.holds.delete(id);
    this.sequences = this.sequences.filter((sequence) => sequence.id !== id);
    return this.parked_bytes;
  }

  restoreSequence(): boolean {
    return this.hasRoom;
  }

  recomputeSequence(id: number): void {
    this.recomputed.push(id);
    this.sequences.unshift(waits(id));
  }

  progress(): SequenceProgress[] {
    return this.sequences;
  }

  stats(): EngineStats {
    const kv = { kv_tokens_total: 1024, kv_tokens_used: 0, kv_bytes: 1024 * kv_bytes_per_token };
    const none = { running: 0, waiting: 0, max_sequences: 4, layouts: {}, batch_invariant: false };
    return {
      ...none,
      weight_bytes: 1_000_000,
      compute_bytes: 0,
      working_bytes: this.working_bytes,
      streamed: this.streamed && { ...this.streamed },
      stages: this.stages,
      ...kv,
    };
  }
}

const prompt_tokens = 20;
export const waits = (id: number): SequenceProgress => ({
  id,
  waiting: true,
  tokens: prompt_tokens,
  generated_tokens: 0,
  pending_tokens: prompt_tokens,
});
export const decodes = (id: number, generated_tokens: number): SequenceProgress => ({
  id,
  waiting: false,
  tokens: prompt_tokens + generated_tokens,
  generated_tokens,
  pending_tokens: 1,
});

interface ScheduledOptions {
  slo?: Slo;
  bytes?: number;
  disk?: ParkingDiskView;
  hostRoom_bytes?: () => number;
}

/** Models of one device under their schedule, whose engines compute what the test says. */
export class Scheduled {
  readonly schedule: DeviceSchedule;
  readonly engines = new Map<string, ToldEngine>();
  now_ms = 0;
  readonly #slo: Slo | undefined;

  constructor(
    names: readonly string[],
    { slo, bytes = pool_bytes, disk, hostRoom_bytes }: ScheduledOptions = {},
  ) {
    const settings = { ...defaultSharingSettings, cold_start_counts: false };
    this.schedule = new DeviceSchedule(settings, disk, hostRoom_bytes);
    this.#slo = slo;
    for (const name of names) this.comes(name, bytes);
  }

  /** A model that was not here, or was away, serves. */
  comes(name: string, bytes = pool_bytes): void {
    const engine = this.engines.get(name) ?? new ToldEngine();
    this.engines.set(name, engine);
    const growing = GrowingProfile.of({
      prefill: [
        { tokens: 16, ms: 100 },
        { tokens: 64, ms: 200 },
      ],
      decode: [
        { batch: 1, tokens: 16, ms: 5 },
        { batch: 4, tokens: 16, ms: 6 },
      ],
    });
    const model: ScheduledModel = { name, max_sequences: 4, prefill_chunk_tokens: 64, tokens_max: 512 };
    if (this.#slo) model.slo = this.#slo;
    this.schedule.add(model, { growing }, engine, bytes, this.now_ms);
  }

  submission(model: string, id: number, changes: Partial<Submission> = {}): Submission {
    return {
      id,
      model,
      tokens: new Int32Array(prompt_tokens),
      n_prompt: prompt_tokens,
      sampling: {} as NonNullable<Submission['sampling']>,
      max_new_tokens: 50,
      arrival_ms: this.now_ms,
      reasoning: false,
      certain: true,
      movable: true,
      continuable: true,
      handover: false,
      answer: id,
      choice: 0,
      stop_tokens: [],
      ...changes,
    };
  }

  ask(model: string, id: number, progress: SequenceProgress): void {
    this.schedule.admit(this.submission(model, id), this.now_ms);
    const engine = this.engines.get(model)!;
    engine.sequences.push(progress);
    this.schedule.sync(model, engine.progress(), this.now_ms);
  }

  choose(): ChosenIteration | undefined {
    this.now_ms += 10;
    return this.schedule.choose(this.now_ms);
  }

  ended(chosen: ChosenIteration, report: Partial<StepReport>): void {
    const engine = this.engines.get(chosen.model)!;
    const nothing = { outputs: [], prefill_tokens: 0, decode_tokens: 0, elapsed_us: 10 };
    this.schedule.ended(chosen, { ...nothing, ...report }, engine.progress(), engine.stats(), 5, this.now_ms);
  }
}
