import { monotonic_ms } from '../../../host/clock.ts';
import { memoryAt } from '../../../native/ggml.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { ArrivingKv } from '../../engine/arriving-kv.ts';
import type { DetachedSequence, HeldKv } from '../../engine/detached-sequence.ts';
import { type KvRange, kvPieces, kvRowRuns, kvRuns } from '../../engine/kv-runs.ts';
import { kv_block_tokens } from '../../engine/kv-storage.ts';
import { NativeEngine } from '../../engine/native-engine.ts';
import type { DeviceSchedule } from './device-schedule.ts';
import type { HostedEngine } from './hosted-engine.ts';
import type {
  HeldRows,
  HostRoom,
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
  /** Of the reservation under way: all of them, and those whose rows come now. */
  tokens: Int32Array;
  runs: readonly KvRange[];
  /** Tokens whose rows have come, and are remembered. */
  arrived: number;
  /** The reservation whose transfer writes to its rows; undefined: none does. */
  writing: number | undefined;
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
    const own = [...this.#arrivals].filter(
      ([, { hosted, writing }]) => hosted.name === model && writing === undefined,
    );
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
    for (const arrival of this.#arrivals.values()) arrival.writing = undefined;
    for (const name of [...this.#arrivals.keys()]) this.#forget(name);
  }

  #do(asked: SequencesAsk): KvTold {
    switch (asked.do) {
      case 'list':
        return this.#list(asked.model);
      case 'hold':
        return this.#hold(asked);
      case 'let_go':
        this.#letGo(asked.id);
        return undefined;
      case 'detach':
        return this.#detach(asked);
      case 'settle':
        this.#settle(asked.id, asked.moved);
        return undefined;
      case 'reserve':
        return this.#reserve(asked);
      case 'commit':
        this.#commit(asked);
        return undefined;
      case 'abort':
        this.#abort(asked);
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

  #hold({ model, id, from = 0, into }: SequencesAsk & { do: 'hold' }): HeldRows | undefined {
    const hosted = this.#models.get(model)?.hosted;
    if (!hosted || this.#held.has(id)) return undefined;
    const engine = nativeOf(hosted);
    const held = engine.holdKv(id);
    if (!held) return undefined;
    this.#held.set(id, { held, leave: hosted.enter() });
    const { tokens: computed, blocks, all } = held;
    try {
      const placed = placedRows(engine, blocks, { begin: Math.min(from, computed), end: computed }, into);
      return { tokens: all.slice(), computed, ...placed };
    } catch (error) {
      this.#letGo(id);
      throw error;
    }
  }

  #letGo(id: number): void {
    const held = this.#held.get(id);
    if (!held) return;
    this.#held.delete(id);
    held.held.release();
    held.leave();
  }

  #detach({ model, id, from, into }: SequencesAsk & { do: 'detach' }): HeldRows | undefined {
    const detached = this.#detached.get(id) ?? this.#stop(model, id);
    if (!detached) return undefined;
    const { hosted, sequence } = detached;
    const { tokens, computed_tokens: computed, blocks } = sequence;
    const range = { begin: Math.min(from, computed), end: computed };
    return { tokens: tokens.slice(), computed, ...placedRows(nativeOf(hosted), blocks.blocks, range, into) };
  }

  #stop(model: string, id: number): Detached | undefined {
    const hosted = this.#models.get(model)?.hosted;
    const sequence = hosted && nativeOf(hosted).detachSequence(id);
    if (!sequence) return undefined;
    const detached = { hosted, sequence, cancelled: false, leave: hosted.enter() };
    this.#detached.set(id, detached);
    this.#sync(hosted);
    return detached;
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

  #reserve(asked: SequencesAsk & { do: 'reserve' }): KvTold {
    const { model, arrival: name, scope, tokens, runs, reservation } = asked;
    const hosted = this.#models.get(model)?.hosted;
    if (!hosted) throw noRoom(model, 'it does not serve here now');
    const engine = nativeOf(hosted);
    this.#checkFollows(name, runs);
    const arrival = this.#arrivals.get(name) ?? this.#open(name, hosted, scope, tokens);
    if (arrival.hosted !== hosted) throw noRoom(model, 'it was loaded anew meanwhile');
    const end = runs.at(-1)?.end ?? 0;
    if (!arrival.kv.grow(end)) {
      if (arrival.arrived === 0) this.#forget(name);
      throw noRoom(model, `${engine.kv_bytes_used} of ${engine.kv_bytes_budget} bytes of its KV are in use`);
    }
    arrival.tokens = tokens.subarray(0, end);
    arrival.runs = runs;
    arrival.writing = reservation;
    const layers = layersOf(engine);
    const placed = runs.map(
      (run): Partial<PlacedRun> => ({ tokens: run, pieces: arrival.kv.places(run, layers) }),
    );
    return placed.every((run): run is PlacedRun => run.pieces !== undefined) ? placed : undefined;
  }

  /**
   * Rows in front of those that come are here, or what is remembered would begin with rows that nobody wrote: what had
   * come may have been given up meanwhile.
   */
  #checkFollows(name: string, runs: readonly KvRange[]): void {
    const known = this.#arrivals.get(name);
    const begin = runs[0]?.begin ?? 0;
    const arrived = known?.arrived ?? 0;
    if (begin === arrived && known?.writing === undefined) return;
    const because =
      known?.writing !== undefined ? 'others are on their way' : `${arrived} tokens of it are here`;
    throw new HpcserveError('E_KV_STALE', {
      what: `rows from token ${begin} on came for sequence ${name}`,
      because,
    });
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
      runs: [],
      arrived: 0,
      writing: undefined,
      unwanted: false,
      leave: hosted.enter(),
    };
    this.#arrivals.set(name, arrival);
    return arrival;
  }

  #commit({ arrival: name, reservation, from }: SequencesAsk & { do: 'commit' }): void {
    const arrival = this.#arrivals.get(name);
    if (!arrival || arrival.writing !== reservation)
      throw noRoom('the model', `nothing is reserved for ${name}`);
    try {
      if (from) this.#copyFrom(from, arrival);
      arrival.kv.commit(arrival.tokens);
      arrival.arrived = arrival.tokens.length;
    } finally {
      arrival.writing = undefined;
      if (arrival.unwanted || arrival.arrived === 0) this.#forget(name);
    }
  }

  /** Runs lie there one after another. */
  #copyFrom({ address, bytes }: HostRoom, { hosted, kv, runs }: Arrival): void {
    const engine = nativeOf(hosted);
    const host = memoryAt(address, bytes);
    let at = 0;
    for (const run of runs) {
      const size = (run.end - run.begin) * engine.kv.token_bytes;
      kv.write(run, layersOf(engine), host.subarray(at, at + size));
      at += size;
    }
  }

  /** What had come before is kept. */
  #abort({ arrival: name, reservation }: SequencesAsk & { do: 'abort' }): void {
    const arrival = this.#arrivals.get(name);
    if (!arrival || arrival.writing !== reservation) return;
    arrival.writing = undefined;
    if (arrival.arrived === 0 || arrival.unwanted) this.#forget(name);
  }

  #forget(name: string): void {
    const arrival = this.#arrivals.get(name);
    if (!arrival) return;
    arrival.unwanted = true;
    if (arrival.writing !== undefined) return;
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

/**
 * What a model's rows are; undefined where they are not all here, or not in the pool.
 * @param memory of the pool, where others can address it
 */
export function kvShapeOf(engine: unknown, memory: KvShapeOfModel['memory']): KvShapeOfModel | undefined {
  if (!(engine instanceof NativeEngine)) return undefined;
  const { kv, info } = engine;
  // Of a pipeline that has one stage now, the next layout may have more.
  if (kv.storage.hold || kv.layers.size !== info.n_layer) return undefined;
  if (memory && !kv.storage.poolOffset) return undefined;
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

/**
 * Where rows lie in the pool; where others cannot address that, as many of them as a room holds are copied there.
 * @throws HpcserveError E_KV_ROOM; Error: nobody brought a room
 */
function placedRows(
  engine: NativeEngine,
  blocks: readonly number[],
  { begin, end }: KvRange,
  into: HostRoom | undefined,
): Pick<HeldRows, 'runs' | 'placed'> {
  const { kv } = engine;
  const layers = layersOf(engine);
  if (kv.storage.poolOffset) {
    const runs = kvRuns(kv, blocks, { begin, end });
    return {
      runs: runs.map((tokens) => ({ tokens, pieces: kvPieces(kv, blocks, tokens, layers)! })),
      placed: end,
    };
  }
  if (!into) throw new Error('the KV of this engine is in no pool that others can address');
  const placed = roomEnd(begin, end, Math.floor(into.bytes / kv.token_bytes));
  if (placed === begin) return { runs: [], placed };
  const tokens = { begin, end: placed };
  const bytes = (placed - begin) * kv.token_bytes;
  kv.readRuns(kvRowRuns(kv, blocks, tokens, layers, memoryAt(into.address, bytes)));
  return { runs: [{ tokens, pieces: [{ offset: into.offset, bytes }] }], placed };
}

/** Up to where tokens have room, at the end of a block where that is not the end of all. */
function roomEnd(begin: number, end: number, tokens_max: number): number {
  if (tokens_max < 1)
    throw new HpcserveError('E_KV_ROOM', {
      what: 'keys and values of one token fill more than a room of the host',
    });
  const fits = Math.min(end, begin + tokens_max);
  const whole = Math.floor(fits / kv_block_tokens) * kv_block_tokens;
  return fits === end || whole <= begin ? fits : whole;
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
