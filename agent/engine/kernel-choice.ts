import koffi from 'koffi';
import { ggmlRow_bytes, ggmlTypeByName } from '../../native/formats/ggml-types.ts';
import { type Ggml, GgmlType, tensorLayout } from '../../native/ggml.ts';
import { packedProducts } from '../../native/packed-products.ts';
import { ProofCache } from '../../native/proof-cache.ts';
import type { Pointer } from '../../native/signature.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { isProvable, type Kernel, plainLayout, whatIsWrongWith } from './kernel-proof.ts';
import { isFaster, type RacedWeight } from './product-race.ts';
import { racedVerdict } from './raced-verdict.ts';
import { row_group } from './row-groups.ts';
import type { KernelPolicy, PlannedWeight } from './weight-plan.ts';

/**
 * Matrices are timed with rows of two lengths: what a product takes for a weight hardly depends on it. Lower: more of a
 * model's matrices are judged by the longer one.
 */
const narrow_width_max = 4096;
/**
 * Of a matrix that is worth a race: smaller ones lie in caches, and are ours. Lower: small models start later; higher:
 * more is taken without being measured.
 */
const raced_bytes_min = 1024 * 1024;
const timed_widths = { narrow: 2048, wide: 8192 };

const choices = new WeakMap<Ggml, KernelChoice>();

/** One for each loaded library. */
export function kernelChoice(ggml: Ggml): KernelChoice {
  let choice = choices.get(ggml);
  if (!choice) {
    choice = new KernelChoice(ggml, ProofCache.open(ggml));
    choices.set(ggml, choice);
  }
  return choice;
}

/**
 * Where each weight lies: in our layout, where its products are faster than ggml's; in the special layout of ggml
 * (AMX, CPU_REPACK) whose kernels are fastest, as libllama asks for it; else in plain memory. Whichever it is was
 * proved on this CPU. What was right once, and which was faster, is kept in the user's cache, by library, CPU and
 * host; what was wrong is tried again by the next process, and told by each.
 */
export class KernelChoice {
  readonly #ggml: Ggml;
  readonly #cache: ProofCache;
  /** By key: what is wrong; undefined where nothing is. */
  readonly #tried = new Map<string, string | undefined>();
  readonly #left_out: HpcserveError[] = [];

  constructor(ggml: Ggml, cache: ProofCache) {
    this.#ggml = ggml;
    this.#cache = cache;
  }

  /** Kernels that are wrong on this CPU and whose weights lie in plain memory instead: one E_NATIVE_KERNEL each. */
  get left_out(): readonly HpcserveError[] {
    return this.#left_out;
  }

  /**
   * A kernel that was not tried before is tried now, which takes milliseconds; where two are right and it is not known
   * which is faster, a second.
   * @returns the special layout for a weight; undefined: plain memory
   * @throws HpcserveError E_NATIVE_KERNEL: it would lie in plain memory, and even that is multiplied wrongly
   */
  bufferTypeFor(weight: PlannedWeight, policy: KernelPolicy): Pointer | undefined {
    const { use } = weight;
    if ((use !== 'matrix' && use !== 'experts') || !isProvable(weight.type)) return undefined;
    const kernel = { type: weight.type, width: weight.shape[0]!, rest: weight.shape[1]! % row_group, use };
    const isProved = (bufferType: Pointer): boolean => {
      const layout = this.#ggml.ggml_backend_buft_name(bufferType)!;
      return this.#whatIsWrong(bufferType, { layout, ...kernel }) === undefined;
    };
    const ours = policy === 'ggml' ? undefined : this.#ownLayout(weight);
    const hasOurs = ours !== undefined && isProved(ours);
    if (hasOurs && (policy === 'own' || bytesOf(weight) < raced_bytes_min)) return ours;
    const theirs = this.#ggml.cpuExtraBufferTypes.find(
      (bufferType) => runsFrom(this.#ggml, bufferType, weight) && isProved(bufferType),
    );
    if (hasOurs && this.#isFaster(ours, theirs, kernel)) return ours;
    if (!theirs) this.#requirePlain({ layout: plainLayout, ...kernel });
    return theirs;
  }

  /** The layout of our products, where there is one for such a weight. */
  #ownLayout({ type, shape, use }: PlannedWeight): Pointer | undefined {
    const packed = packedProducts(this.#ggml);
    const [width] = shape;
    return (use === 'matrix' || use === 'experts') && packed?.canMultiply(ggmlTypeByName(type).id, width!)
      ? packed.bufferType
      : undefined;
  }

  /** Whether our product is faster than ggml's best. */
  #isFaster(
    ours: Pointer,
    theirs: Pointer | undefined,
    { type, width, use }: Omit<Kernel, 'layout'>,
  ): boolean {
    const ggml = this.#ggml;
    const other = theirs ?? ggml.ggml_backend_cpu_buffer_type()!;
    const names = [ours, other].map((bufferType) => ggml.ggml_backend_buft_name(bufferType));
    const timed_width = width <= narrow_width_max ? timed_widths.narrow : timed_widths.wide;
    const key = [type, timed_width, ...names, ...(use === 'experts' ? [use] : [])].join(' ');
    return racedVerdict(this.#cache, key, () => this.#race({ type, width: timed_width, use }, ours, other));
  }

  /** @returns undefined where there is no memory to find out in */
  #race(raced: RacedWeight, ours: Pointer, theirs: Pointer): boolean | undefined {
    try {
      return isFaster(this.#ggml, raced, ours, theirs);
    } catch (error) {
      if (error instanceof HpcserveError && error.code === 'E_NATIVE_MEMORY') return undefined;
      throw error;
    }
  }

  /** A kernel that is no product was found wrong. */
  leaveOut(error: HpcserveError): void {
    if (!this.#left_out.some(({ message }) => message === error.message)) this.#left_out.push(error);
  }

  /** What was found right is kept for other processes. */
  keep(): void {
    this.#cache.write();
  }

  #requirePlain(kernel: Kernel): void {
    const because = this.#whatIsWrong(this.#ggml.ggml_backend_cpu_buffer_type()!, kernel);
    if (because !== undefined) throw wrong(this.#ggml, kernel, because, 'nothing else can take its place');
  }

  #whatIsWrong(bufferType: Pointer, kernel: Kernel): string | undefined {
    const key = keyOf(kernel);
    if (this.#tried.has(key)) return this.#tried.get(key);
    const fault = this.#cache.has(key) ? undefined : whatIsWrongWith(this.#ggml, bufferType, kernel);
    this.#tried.set(key, fault);
    if (fault === undefined) this.#cache.add(key);
    else if (kernel.layout !== plainLayout)
      this.#left_out.push(
        wrong(this.#ggml, kernel, fault, 'other kernels, which are slower, take its place'),
      );
    return fault;
  }
}

function bytesOf({ type, shape }: PlannedWeight): number {
  const [width, ...others] = shape;
  return others.reduce((product, extent) => product * extent, ggmlRow_bytes(ggmlTypeByName(type), width!));
}

function keyOf({ layout, type, width, rest, use }: Kernel): string {
  return [layout, type, width, rest, use].join(' ');
}

function wrong(ggml: Ggml, kernel: Kernel, because: string, consequence: string): HpcserveError {
  const { layout, type, width, use } = kernel;
  return new HpcserveError('E_NATIVE_KERNEL', {
    what: `the ${layout} kernel for ${type} ${use === 'experts' ? 'experts' : 'matrices'} of ${width} columns is wrong on this CPU: ${consequence}`,
    because: [because, `instruction sets: ${ggml.cpuFeatures.join(' ')}`],
    details: { ...kernel },
  });
}

/** Whether ggml has kernels for this weight in this layout; the question that libllama asks, too. */
function runsFrom(ggml: Ggml, bufferType: Pointer, weight: PlannedWeight): boolean {
  const context = ggml.ggml_init({
    mem_size: 8 * Number(ggml.ggml_tensor_overhead()),
    mem_buffer: null,
    no_alloc: true,
  })!;
  const buffer = ggml.ggml_backend_buft_alloc_buffer(bufferType, 0);
  try {
    const [ne0, ne1 = 1, ne2 = 1] = weight.shape;
    const type = ggmlTypeByName(weight.type).id;
    const matrix = ggml.ggml_new_tensor_3d(context, type, ne0!, ne1, ne2)!;
    koffi.encode(matrix, tensorLayout.buffer, 'void *', buffer);
    const op =
      weight.use === 'experts'
        ? ggml.ggml_mul_mat_id(
            context,
            matrix,
            ggml.ggml_new_tensor_3d(context, GgmlType.F32, ne0!, 1, 512),
            ggml.ggml_new_tensor_2d(context, GgmlType.I32, 1, 512),
          )
        : ggml.ggml_mul_mat(context, matrix, ggml.ggml_new_tensor_2d(context, GgmlType.F32, ne0!, 512));
    return ggml.ggml_backend_dev_supports_op(ggml.cpuDevice, op);
  } finally {
    if (buffer) ggml.ggml_backend_buffer_free(buffer);
    ggml.ggml_free(context);
  }
}
