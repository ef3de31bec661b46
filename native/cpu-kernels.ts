/**
 * Our own matrix products for CPUs (native/kernels, in C): weights that were packed once, multiplied by the widest
 * instruction set that this CPU has. The build compiles them where there is a C compiler; where there was none, ggml's
 * kernels serve alone.
 */
import { existsSync } from 'node:fs';
import koffi from 'koffi';
import { cpuKernelsPath } from './cpu-kernels-file.ts';
import { type Bound, bind, type Pointer, type SignatureTable } from './signature.ts';

/** enum hk_set, the fastest first where BF16 is multiplied faster than F32, and the names that messages use. */
const kernelSets = [
  { name: 'AMX-BF16', bit: 4 },
  { name: 'AVX-512 BF16', bit: 2 },
  { name: 'AVX-512 VNNI', bit: 8 },
  { name: 'AVX2', bit: 1 },
] as const;
export type KernelSet = (typeof kernelSets)[number];

/** See native/kernels/pack.h, dispatch.h, ggml-layout.c and attention-operator.c. */
const table = {
  hk_compiled_sets: ['i32'],
  hk_sets: ['i32'],
  hk_is_bf16_slow: ['i32'],
  hk_set_for: ['i32', 'i32', 'i32', 'i32'],
  hk_can_pack: ['i32', 'i32', 'i64'],
  hk_packed_bytes: ['i64', 'i32', 'i64', 'i64'],
  hk_pack_weights: ['i32', 'i32', 'i32', 'i64', 'i64', 'ptr', 'ptr'],
  hk_activation_bytes: ['i64', 'i32', 'i64', 'i64'],
  hk_pack_activations: ['void', 'i32', 'i64', 'i64', 'ptr', 'i64', 'ptr', 'i64', 'i64'],
  hk_multiply: ['i32', 'i32', 'i32', 'i64', 'i64', 'i64', 'ptr', 'ptr', 'ptr', 'i64', 'i64', 'i64'],
  hk_expert_activation_bytes: ['i64', 'i32', 'i64', 'i64', 'i64'],
  hk_layout: ['ptr', 'i32', 'ptr'],
  hk_take_refused: ['str'],
  hk_are_finite: ['i32', 'i32', 'i64', 'i64', 'ptr'],
  hk_can_attend: ['i32', 'i32', 'i32', 'i64', 'i64', 'i64'],
  hk_attention_part_tokens: ['i32'],
  hk_attention_partial_floats: ['i64', 'i64', 'i64'],
} as const satisfies SignatureTable;

export interface CpuKernels extends Bound<typeof table> {
  readonly path: string;
  /** Instruction sets that were compiled, and those of them that run here; the fastest first. */
  readonly compiled: readonly KernelSet[];
  readonly sets: readonly KernelSet[];
  /** `ggml_custom_op_t` functions; their user data is the bit of a set. */
  readonly packOperator: Pointer;
  readonly multiplyOperator: Pointer;
  readonly attendOperator: Pointer;
  readonly rowsOperator: Pointer;
  readonly exactOperator: Pointer;
  /** Of a mixture of experts, see expert-operators.c. */
  readonly groupOperator: Pointer;
  readonly packExpertsOperator: Pointer;
  readonly multiplyExpertsOperator: Pointer;
}

let loaded: CpuKernels | undefined;

/** AVX-512 without products of BF16 takes BF16 as F32, and quantized weights as the other does. */
function withBf16Behind(sets: readonly KernelSet[]): KernelSet[] {
  const names: readonly string[] = ['AVX-512 VNNI', 'AVX-512 BF16'];
  const wide = names.flatMap((name) => sets.filter((set) => set.name === name));
  return [
    ...sets.filter(({ name }) => name === 'AMX-BF16'),
    ...wide,
    ...sets.filter(({ name }) => name === 'AVX2'),
  ];
}

/**
 * Loads the library, once a process. It needs nothing but the C library, and asks the CPU what it may use.
 * @returns undefined where it was not built
 */
export function loadCpuKernels(path = cpuKernelsPath): CpuKernels | undefined {
  if (loaded?.path === path) return loaded;
  if (!existsSync(path)) return undefined;
  const library = koffi.load(path);
  const bound = bind(library, table);
  const named = (bits: number): KernelSet[] => kernelSets.filter(({ bit }) => (bits & bit) !== 0);
  const sets = named(bound.hk_sets());
  loaded = {
    ...bound,
    path,
    compiled: named(bound.hk_compiled_sets()),
    sets: bound.hk_is_bf16_slow() === 1 ? withBf16Behind(sets) : sets,
    packOperator: library.symbol('hk_pack_operator') as Pointer,
    multiplyOperator: library.symbol('hk_multiply_operator') as Pointer,
    attendOperator: library.symbol('hk_attend_operator') as Pointer,
    rowsOperator: library.symbol('hk_rows_operator') as Pointer,
    exactOperator: library.symbol('hk_exact_operator') as Pointer,
    groupOperator: library.symbol('hk_group_operator') as Pointer,
    packExpertsOperator: library.symbol('hk_pack_experts_operator') as Pointer,
    multiplyExpertsOperator: library.symbol('hk_multiply_experts_operator') as Pointer,
  };
  return loaded;
}
