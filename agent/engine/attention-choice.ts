import { loadCpuKernels } from '../../native/cpu-kernels.ts';
import type { Ggml } from '../../native/ggml.ts';
import { type AttentionHeads, PagedAttention } from '../../native/paged-attention.ts';
import { ProofCache } from '../../native/proof-cache.ts';
import type { KernelsOption } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Backend } from '../backend/backend.ts';
import type { Compute } from '../backend/compute.ts';
import { type AttentionWins, BatchAttention } from './batch-attention.ts';
import { kernelChoice } from './kernel-choice.ts';
import { inTurn } from './product-race.ts';
import { racedVerdict } from './raced-verdict.ts';
import { type AttentionWay, TimedAttention, type TimedSegment } from './timed-attention.ts';

/** Batches that stand for their kind. Higher: noise decides less often; lower: a first start is quicker. */
const raced: Record<keyof AttentionWins, TimedSegment[]> = {
  decode: new Array<TimedSegment>(4).fill({ rows: 1, position: 1023 }),
  prompts: [{ rows: 128, position: 384 }],
};
const rounds = 4;
/** A batch of both kinds, whose sequences end within blocks and parts. */
const proved: TimedSegment[] = [
  { rows: 1, position: 300 },
  { rows: 21, position: 250 },
  { rows: 1, position: 0 },
];
/**
 * Error of the proof as a share of what is computed, both as root mean squares. ggml rounds queries to 16 or 8 bits,
 * and a token that is missing makes ten times as much.
 */
const error_max = 0.02;

export interface AttentionOptions {
  threads: number;
  batch_invariant?: boolean | undefined;
  kernels?: KernelsOption;
}

/**
 * Our attention for a stage, where it is right on this CPU and no slower than ggml's, or asked for: `own`, or
 * `batch_invariant`, which nothing is measured for. What was found is kept in the user's cache.
 * @returns undefined: ggml's alone
 * @throws HpcserveError E_NATIVE_MEMORY
 */
export function attentionFor(
  backend: Backend,
  heads: AttentionHeads,
  { threads, batch_invariant, kernels = 'auto' }: AttentionOptions,
): BatchAttention | undefined {
  const { ggml } = backend;
  const own = loadCpuKernels();
  if (kernels === 'ggml' || !own || backend.plain !== ggml.ggml_backend_cpu_buffer_type()) return undefined;
  const paged = PagedAttention.open(ggml, own, heads);
  if (!paged) return undefined;
  const race = new AttentionRace(ggml, paged, heads, backend, threads);
  if (!race.isRight()) return undefined;
  if (kernels === 'own' || batch_invariant) return new BatchAttention(paged, { decode: true, prompts: true });
  const wins = race.wins();
  return wins.decode || wins.prompts ? new BatchAttention(paged, wins) : undefined;
}

/** Our attention against ggml's over keys that lie side by side: whether it is right, and for what it is quicker. */
class AttentionRace {
  readonly #ggml: Ggml;
  readonly #paged: PagedAttention;
  readonly #heads: AttentionHeads;
  readonly #backend: Backend;
  readonly #threads: number;
  readonly #cache: ProofCache;
  readonly #key: string;

  constructor(ggml: Ggml, paged: PagedAttention, heads: AttentionHeads, backend: Backend, threads: number) {
    this.#ggml = ggml;
    this.#paged = paged;
    this.#heads = heads;
    this.#backend = backend;
    this.#threads = threads;
    this.#cache = ProofCache.open(ggml);
    const { kv_type, n_head, n_head_kv, head_dim } = heads;
    this.#key = `attention ${paged.identity} ${kv_type} ${n_head} ${n_head_kv} ${head_dim}`;
  }

  isRight(): boolean {
    const key = `${this.#key} right`;
    if (this.#cache.has(key)) return true;
    const error = this.#with(1, (compute) => {
      const [ours, theirs] = this.#ways().map((way) => {
        const timed = new TimedAttention(this.#ggml, compute, way, this.#heads, proved);
        timed.run_ms();
        const result = timed.result();
        timed.free();
        return result;
      }) as [Float32Array, Float32Array];
      return relativeError(ours, theirs);
    });
    if (error <= error_max) {
      this.#cache.add(key);
      this.#cache.write();
      return true;
    }
    const { set } = this.#paged;
    kernelChoice(this.#ggml).leaveOut(
      new HpcserveError('E_NATIVE_KERNEL', {
        what: `our attention by ${set.name} is wrong on this CPU: ggml's, which is slower, takes its place`,
        because: `its results are off by ${error} of their size`,
        details: { layout: 'block table', ...this.#heads },
      }),
    );
    return false;
  }

  wins(): AttentionWins {
    const key = `${this.#key} ${this.#threads} threads`;
    const wins = (kind: keyof AttentionWins): boolean =>
      racedVerdict(this.#cache, `${key} ${kind}`, () => this.#isNoSlower(raced[kind]));
    const found = { decode: wins('decode'), prompts: wins('prompts') };
    this.#cache.write();
    return found;
  }

  #isNoSlower(segments: readonly TimedSegment[]): boolean {
    return this.#with(this.#threads, (compute) => {
      const timed = this.#ways().map(
        (way) => new TimedAttention(this.#ggml, compute, way, this.#heads, segments),
      );
      const best = timed.map(() => Number.POSITIVE_INFINITY);
      for (let round = 0; round <= rounds; round++)
        for (const index of inTurn(round)) best[index] = Math.min(best[index]!, timed[index]!.run_ms());
      for (const one of timed) one.free();
      return best[0]! <= best[1]!;
    });
  }

  #ways(): [AttentionWay, AttentionWay] {
    return [this.#paged, 'in place'];
  }

  #with<T>(threads: number, use: (compute: Compute) => T): T {
    const compute = this.#backend.compute({ threads, fixed_paths: false });
    try {
      return use(compute);
    } finally {
      compute.free();
    }
  }
}

function relativeError(found: Float32Array, right: Float32Array): number {
  let error = 0;
  let size = 0;
  for (const [index, value] of right.entries()) {
    error += (found[index]! - value) ** 2;
    size += value ** 2;
  }
  return Math.sqrt(error / size);
}
