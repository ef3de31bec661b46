import { monotonic_ms } from '../../../host/clock.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { ArrivingKv } from '../../engine/arriving-kv.ts';
import type { DetachedSequence, HeldKv } from '../../engine/detached-sequence.ts';
import { type KvRange, kvPieces, kvRuns } from '../../engine/kv-runs.ts';
import { NativeEngine } from '../../engine/native-engine.ts';
import type { DeviceSchedule } from './device-schedule.ts';
import type { HostedEngine } from './hosted-engine.ts';
import type {
  HeldRows,
  KvShapeOfModel,
  KvTold,
  PlacedRun,
  SequenceState,
  SequencesAsk,
} from './kv-messages.ts';
import type { FromCompute, Submission } from './messages.ts';
import type { WorkerModels } from './worker-models.ts';

/** Rows of a sequence that goes on meanwhile. */
interface Held {
  held: HeldKv;
  leave: () => void;
}

interface Detached {
  hosted: HostedEngine;
  sequence: DetachedSequence;
  /** Its client has gone: it goes on nowhere. */
  cancelled: boolean;
  leave: () => void;
}

interface Arrival {
  hosted: HostedEngine;
  kv: ArrivingKv;
  /** Its place in the schedule. */
  id: number;
  /** Of the reservation under way. */
  tokens: Int32Array;
  /** Something has come, and is remembered. */
  committed: boolean;
  /** A transfer writes to its rows. */
  writing: boolean;
  /** To be given up as soon as nothing writes there. */
  unwanted: boolean;
  leave: () => void;
}

/**
 * Sequences of the compute thread that leave with their keys and values, and rows of those that come. Rows that are
 * read or written by a transfer keep their engine open, whatever becomes of its model: their memory is nobody else's
 * before the transfer is over.
 *
 *     leaves:  hold ─► let_go ─┐  (it decodes on)         comes:  reserve ─► commit ─┬─► reserve …
 *              detach ─────────┴─► settle ─► moved                       └─► abort    └─► forget: kept as any prompt
 *                                     └────► goes on
 */
export class KvMoves {
  readonly #models: WorkerModels;
  readonly #schedule: DeviceSchedule;
  readonly #send: (message: FromCompute) => void;
  readonly #held = new Map<number, Held>();
  readonly #detached = new Map<number, Detached>();
  readonly #arrivals = new Map<string, Arrival>();
  #arrived = 0;

  constructor(models: WorkerModels, schedule: DeviceSchedule, send: (message: FromCompute) => void) {
    this.#models = models;
    this.#schedule = schedule;
    this.#send = send;
  }

  answer(ask: number, asked: SequencesAsk): void {
    try {
      this.#send({ type: 'kv', ask, told: this.#do(asked) });
    } catch (error) {
      this.#send({ type: 'kv', ask, error: HpcserveError.from(error).toJSON() });
    }
  }

  /** A sequence that may be detached has no client any more. */
  cancelled(id: number): void {
    const detached = this.#detached.get(id);
    if (detached) detached.cancelled = true;
  }

  /** KV is short: what has arrived is kept like any other prompt from now on. @returns whether there was something */
  giveUp(model: string): boolean {
    const own = [...this.#arrivals].filter(([, { hosted, writing }]) => hosted.name === model && !writing);
    for (const [name] of own) this.#forget(name);
    return own.length > 0;
  }

  /** The thread ends, and no transfer is under way any more. */
  close(): void {
    for (const id of [...this.#held.keys()]) this.#letGo(id);
    for (const { hosted, sequence, leave } of this.#detached.values()) {
      nativeOf(hosted).discardSequence(sequence);
      leave();
    }
    this.#detached.clear();
    for (const arrival of this.#arrivals.values()) arrival.writing = false;
    for (const name of [...this.#arrivals.keys()]) this.#forget(name);
  }

  #do(asked: SequencesAsk): KvTold {
    switch (asked.do) {
      case 'list':
        return this.#list(asked.model);
      case 'hold':
        return this.#hold(asked.model, asked.id, asked.from ?? 0);
      case 'let_go':
        this.#letGo(asked.id);
        return undefined;
      case 'detach':
        return this.#detach(asked.model, asked.id, asked.from);
      case 'settle':
        this.#settle(asked.id, asked.moved);
        return undefined;
      case 'reserve':
        return this.#reserve(asked);
      case 'commit':
        this.#commit(asked.arrival);
        return undefined;
      case 'abort':
        this.#abort(asked.arrival);
        return undefined;
      case 'forget':
        this.#forget(asked.arrival);
        return undefined;
    }
  }

  #list(model: string): SequenceState[] {
    const progress = this.#models.get(model)?.hosted?.engine.progress() ?? [];
    return progress.map(({ id, waiting, tokens, pending_tokens }) => {
      const computed_tokens = waiting ? 0 : tokens - pending_tokens;
      return { id, waiting, tokens, computed_tokens };
    });
  }

  #hold(model: string, id: number, from: number): HeldRows | undefined {
    const hosted = this.#models.get(model)?.hosted;
    if (!hosted || this.#held.has(id)) return undefined;
    const engine = nativeOf(hosted);
    const held = engine.holdKv(id);
    if (!held) return undefined;
    this.#held.set(id, { held, leave: hosted.enter() });
    const { tokens: computed, blocks, all } = held;
    const runs = placed(engine, blocks, Math.min(from, computed), computed);
    return { tokens: all.slice(), computed, runs };
  }

  #letGo(id: number): void {
    const held = this.#held.get(id);
    if (!held) return;
    this.#held.delete(id);
    held.held.release();
    held.leave();
  }

  #detach(model: string, id: number, from: number): HeldRows | undefined {
    const hosted = this.#models.get(model)?.hosted;
    if (!hosted) return undefined;
    const engine = nativeOf(hosted);
    const sequence = engine.detachSequence(id);
    if (!sequence) return undefined;
    this.#detached.set(id, { hosted, sequence, cancelled: false, leave: hosted.enter() });
    this.#sync(hosted);
    const { tokens, computed_tokens: computed, blocks } = sequence;
    return {
      tokens: tokens.slice(),
      computed,
      runs: placed(engine, blocks.blocks, Math.min(from, computed), computed),
    };
  }

  #settle(id: number, moved: boolean): void {
    const detached = this.#detached.get(id);
    if (!detached) return;
    this.#detached.delete(id);
    const { hosted, sequence, cancelled, leave } = detached;
    const engine = nativeOf(hosted);
    const goesOn = !moved && !cancelled && !hosted.closed;
    if (!goesOn) engine.discardSequence(sequence);
    // Others have its slot: it waits, and is computed again.
    else if (!engine.attachSequence(sequence, sequence.computed_tokens)) engine.attachSequence(sequence, 0);
    leave();
    if (!hosted.closed) this.#sync(hosted);
  }

  #reserve({ model, arrival: name, scope, tokens, runs }: SequencesAsk & { do: 'reserve' }): PlacedRun[] {
    const hosted = this.#models.get(model)?.hosted;
    if (!hosted) throw noRoom(model, 'it does not serve here now');
    const engine = nativeOf(hosted);
    const arrival = this.#arrivals.get(name) ?? this.#open(name, hosted, scope, tokens);
    if (arrival.hosted !== hosted) throw noRoom(model, 'it was loaded anew meanwhile');
    const end = runs.at(-1)?.end ?? 0;
    if (!arrival.kv.grow(end)) {
      if (!arrival.committed) this.#forget(name);
      throw noRoom(model, `${engine.kv_bytes_used} of ${engine.kv_bytes_budget} bytes of its KV are in use`);
    }
    arrival.tokens = tokens.subarray(0, end);
    arrival.writing = true;
    const layers = layersOf(engine);
    return runs.map((run) => ({ tokens: run, pieces: arrival.kv.places(run, layers) }));
  }

  /** What comes counts as a request of its model, so that the model has KV for it and stays. */
  #open(name: string, hosted: HostedEngine, scope: string | undefined, tokens: Int32Array): Arrival {
    const id = -++this.#arrived;
    this.#schedule.admit(guest(id, hosted.name, tokens), monotonic_ms());
    const kv = nativeOf(hosted).openArrival(scope);
    const arrival: Arrival = {
      hosted,
      kv,
      id,
      tokens,
      committed: false,
      writing: false,
      unwanted: false,
      leave: hosted.enter(),
    };
    this.#arrivals.set(name, arrival);
    return arrival;
  }

  #commit(name: string): void {
    const arrival = this.#arrivals.get(name);
    if (!arrival) throw noRoom('the model', `nothing is reserved for ${name}`);
    arrival.kv.commit(arrival.tokens);
    arrival.committed = true;
    arrival.writing = false;
    if (arrival.unwanted) this.#forget(name);
  }

  /** What had come before is kept. */
  #abort(name: string): void {
    const arrival = this.#arrivals.get(name);
    if (!arrival) return;
    arrival.writing = false;
    if (!arrival.committed || arrival.unwanted) this.#forget(name);
  }

  #forget(name: string): void {
    const arrival = this.#arrivals.get(name);
    if (!arrival) return;
    arrival.unwanted = true;
    if (arrival.writing) return;
    this.#arrivals.delete(name);
    const { hosted, kv, id, leave } = arrival;
    kv.release();
    leave();
    if (!hosted.closed) this.#schedule.cancelled(hosted.name, id, hosted.engine.progress(), monotonic_ms());
  }

  #sync(hosted: HostedEngine): void {
    this.#schedule.sync(hosted.name, hosted.engine.progress(), monotonic_ms());
  }
}

/** What a model's rows are; undefined where others cannot address them, or they are not all here. */
export function kvShapeOf(
  engine: unknown,
  memory: KvShapeOfModel['memory'] | undefined,
): KvShapeOfModel | undefined {
  if (!(engine instanceof NativeEngine) || !memory) return undefined;
  const { kv, info } = engine;
  // Of a pipeline that has one stage now, the next layout may have more.
  if (!kv.storage.poolOffset || kv.storage.hold || kv.layers.size !== info.n_layer) return undefined;
  const { n_layer, n_head_kv } = info;
  return { row_bytes: kv.row_bytes, n_layer, n_head_kv, head_dim: kv.head_dim, memory };
}

/** @throws Error: nobody was told that its rows can move */
function nativeOf({ engine, name }: HostedEngine): NativeEngine {
  if (engine instanceof NativeEngine) return engine;
  throw new Error(`the engine of ${name} has no rows that can move`);
}

function layersOf(engine: NativeEngine): KvRange {
  return { begin: 0, end: engine.info.n_layer };
}

function placed(engine: NativeEngine, blocks: readonly number[], begin: number, end: number): PlacedRun[] {
  const { kv } = engine;
  const layers = layersOf(engine);
  return kvRuns(kv, blocks, { begin, end }).map((tokens) => {
    const pieces = kvPieces(kv, blocks, tokens, layers);
    if (!pieces) throw new Error('the KV of this engine is in no pool that others can address');
    return { tokens, pieces };
  });
}

/** A request that only takes room: whoever goes on with it comes later. */
function guest(id: number, model: string, tokens: Int32Array): Submission {
  return {
    id,
    model,
    tokens,
    n_prompt: tokens.length,
    max_new_tokens: 0,
    arrival_ms: monotonic_ms(),
    reasoning: false,
    certain: true,
    movable: true,
    continuable: false,
    handover: false,
    answer: 0,
    choice: 0,
    stop_tokens: [],
  };
}

function noRoom(model: string, because: string): HpcserveError {
  return new HpcserveError('E_KV_ROOM', { what: `${model} has no room for a sequence that comes`, because });
}
