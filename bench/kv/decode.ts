/** Decode steps of one batch, with KV that is taken from a pool as it is needed and with KV that was reserved whole. */
import type { Backend } from '../../agent/backend/backend.ts';
import { NativeEngine } from '../../agent/engine/native-engine.ts';
import { DevicePool } from '../../agent/memory/device-pool.ts';
import { seededRandom } from '../../solver/simulator/random.ts';

/** One, so that the step does not hang on when others' threads get a core. */
const threads = 1;
const sequences = 4;
const context_tokens = 320;
const rounds = 12;
const steps_per_turn = 3;
/** Requests that come and go between the two measurements at least. */
const churn_requests = 60;
const mib = 2 ** 20;

export interface Decode {
  /** Medians of a step. */
  on_demand_ms: number;
  reserved_ms: number;
  /** Median over pairs of turns of reserved over on demand. */
  ratio: number;
  /** Of the steps' time: what taking memory for new tokens took. */
  allocation_share: number;
  /** Largest number of extents of a sequence. */
  extents: number;
}

export interface DecodeReport {
  fresh: Decode;
  churned: Decode;
  churned_requests: number;
}

/** @param churn_minutes requests come and go at least for so long between the two measurements */
export async function measureDecode(
  backend: Backend,
  model_path: string,
  log: (line: string) => void,
  churn_minutes: number,
): Promise<DecodeReport> {
  const pool = new DevicePool(backend, { pool_bytes: 2e9, threads });
  const options = {
    model_path,
    threads,
    context_tokens: 1024,
    max_sequences: 16,
    prefill_chunk_tokens: 256,
    kv_tokens: 16 * 1024,
    kv_type: 'f16' as const,
    batch_invariant: false,
  };
  const opening = pool.open(options);
  let engine: NativeEngine | undefined;
  while (!engine) engine = opening.advance(true);
  const reserved = new NativeEngine(options, backend);
  const onDemand = new Subject(engine);
  const other = new Subject(reserved);
  try {
    for (const subject of [onDemand, other]) subject.fill();
    const fresh = compare(onDemand, other);
    log(`fresh: ${fresh.on_demand_ms.toFixed(2)} ms against ${fresh.reserved_ms.toFixed(2)} ms`);
    const random = seededRandom(3);
    const fillers = new Fillers(pool, random);
    const until_ms = performance.now() + 60_000 * churn_minutes;
    let churned_requests = 0;
    for (; churned_requests < churn_requests || performance.now() < until_ms; churned_requests++) {
      const tokens = 8 + Math.floor(56 * random());
      const cancelled = Math.floor(sequences * random());
      for (const subject of [onDemand, other]) subject.replace(cancelled, tokens);
      fillers.disturb();
    }
    pool.verify();
    for (const subject of [onDemand, other]) subject.fill();
    const churned = compare(onDemand, other);
    log(`churned: ${churned.on_demand_ms.toFixed(2)} ms against ${churned.reserved_ms.toFixed(2)} ms`);
    fillers.free();
    return { fresh, churned, churned_requests };
  } finally {
    engine.close();
    reserved.close();
    await pool.close();
  }
}

function compare(onDemand: Subject, reserved: Subject): Decode {
  const times: [number[], number[]] = [[], []];
  const ratios: number[] = [];
  onDemand.turn();
  reserved.turn();
  onDemand.allocating_ms = 0;
  for (let round = 0; round < rounds; round++) {
    const mine = onDemand.turn();
    const theirs = reserved.turn();
    times[0].push(mine);
    times[1].push(theirs);
    ratios.push(theirs / mine);
  }
  const spent_ms = times[0].reduce((sum, ms) => sum + ms * steps_per_turn, 0);
  return {
    on_demand_ms: median(times[0]),
    reserved_ms: median(times[1]),
    ratio: median(ratios),
    allocation_share: onDemand.allocating_ms / spent_ms,
    extents: onDemand.extents(),
  };
}

/** An engine with sequences that never end by themselves. */
class Subject {
  allocating_ms = 0;
  readonly #engine: NativeEngine;
  readonly #live: number[] = [];
  #next = 1;
  #timed = false;

  constructor(engine: NativeEngine) {
    this.#engine = engine;
  }

  /** All sequences anew, each with the full context. */
  fill(): void {
    for (const id of this.#live.splice(0)) this.#engine.cancel(id);
    for (let index = 0; index < sequences; index++) this.#live.push(this.#add(context_tokens));
    this.#settle();
    this.#time();
  }

  replace(index: number, tokens: number): void {
    this.#engine.cancel(this.#live[index]!);
    this.#live[index] = this.#add(tokens);
    this.#step();
  }

  /** @returns ms of a step, over several */
  turn(): number {
    const started = performance.now();
    for (let step = 0; step < steps_per_turn; step++) this.#step();
    return (performance.now() - started) / steps_per_turn;
  }

  extents(): number {
    const counts = this.#live.map((id) => {
      const blocks = this.#engine.kvOf(id)?.blocks ?? [];
      return 1 + blocks.filter((block, index) => index > 0 && block !== blocks[index - 1]! + 1).length;
    });
    return Math.max(...counts);
  }

  #add(tokens: number): number {
    const id = this.#next++;
    this.#engine.add({
      id,
      prompt_tokens: Int32Array.from({ length: tokens }, (_, index) => (index * 7919 + id * 31) % 16_000),
      sampler: { sample: () => ({ token: 1 }) },
      max_new_tokens: 600,
      stop_tokens: new Set(),
    });
    return id;
  }

  #settle(): void {
    while (this.#engine.progress().some(({ waiting, pending_tokens }) => waiting || pending_tokens > 1))
      this.#step();
  }

  #step(): void {
    if (this.#engine.step().kv_exhausted) throw new Error('the fillers left too little KV memory to measure');
  }

  /** Counts the time that taking memory takes from now on. */
  #time(): void {
    const storage = this.#engine.kvOf(this.#live[0]!)?.stage.kv.storage;
    if (this.#timed || !storage) return;
    this.#timed = true;
    const commit = storage.commit.bind(storage);
    storage.commit = (slabs, demand) => {
      const started = performance.now();
      const done = commit(slabs, demand);
      this.allocating_ms += performance.now() - started;
      return done;
    };
  }
}

/** What other models take and give back meanwhile: slabs of other sizes, all over the pool. */
class Fillers {
  readonly #random: () => number;
  readonly #storage: ReturnType<ReturnType<DevicePool['kv']>['open']>;
  readonly #held: number[] = [];

  constructor(pool: DevicePool, random: () => number) {
    this.#random = random;
    this.#storage = pool.kv('filler').open({ matrices: 4, row_bytes: 1024, tokens: 64 * 1024 });
  }

  disturb(): void {
    const free = Array.from({ length: 512 }, (_, slab) => slab).filter((slab) => !this.#held.includes(slab));
    if (this.#held.length < 256 || this.#random() < 0.5) {
      const slab = free[Math.floor(free.length * this.#random())]!;
      if (this.#storage.commit([slab], 'free')) this.#held.push(slab);
    } else this.#storage.release(this.#held.splice(Math.floor(this.#held.length * this.#random()), 1));
  }

  free(): void {
    this.#storage.free();
  }
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)]!;
}

export const decode_setting = `${sequences} sequences of ${context_tokens} tokens and more, pool of ${Math.round(2e9 / mib)} MiB`;
