import koffi from 'koffi';
import { ggmlTypeByName } from '../../native/formats/ggml-types.ts';
import { type Ggml, GgmlType, tensorLayout } from '../../native/ggml.ts';
import { ProofCache } from '../../native/proof-cache.ts';
import type { Pointer } from '../../native/signature.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { isProvable, type Kernel, plainLayout, whatIsWrongWith } from './kernel-proof.ts';
import { row_group } from './row-groups.ts';
import type { PlannedWeight } from './weight-plan.ts';

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
 * Where each weight lies: in the special layout (AMX, CPU_REPACK) whose kernels are fastest, as libllama asks for it,
 * if those kernels were proved on this CPU; else in plain memory, whose kernels are proved as well. What was right once
 * is kept in the user's cache, by library, CPU and host; what was wrong is tried again by the next process, and told by
 * each.
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
   * A kernel that was not tried before is tried now, which takes milliseconds.
   * @returns the special layout for a weight; undefined: plain memory
   * @throws HpcserveError E_NATIVE_KERNEL: it would lie in plain memory, and even that is multiplied wrongly
   */
  bufferTypeFor(weight: PlannedWeight): Pointer | undefined {
    const { use } = weight;
    if ((use !== 'matrix' && use !== 'experts') || !isProvable(weight.type)) return undefined;
    const kernel = { type: weight.type, width: weight.shape[0]!, rest: weight.shape[1]! % row_group, use };
    const special = this.#ggml.cpuExtraBufferTypes.find((bufferType) => {
      if (!runsFrom(this.#ggml, bufferType, weight)) return false;
      const layout = this.#ggml.ggml_backend_buft_name(bufferType)!;
      return this.#whatIsWrong(bufferType, { layout, ...kernel }) === undefined;
    });
    if (!special) this.#requirePlain({ layout: plainLayout, ...kernel });
    return special;
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
        wrong(this.#ggml, kernel, fault, 'plain kernels, which are slower, take its place'),
      );
    return fault;
  }
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
