/** Instruction sets of CPUs as people name them, the most able first; flags as ggml and the kernel spell them. */
const families: readonly [words: string, flags: RegExp][] = [
  ['AMX', /^amx[-_]?(int8|bf16|tile)?$/i],
  ['AVX-512', /^avx[-_]?512/i],
  ['AVX2', /^avx2$/i],
  ['SVE', /^sve/i],
  ['NEON', /^(neon|asimd)$/i],
];

/** `AMX, AVX-512`: the two most able that are there; empty where none is known. */
export function describeIsa(isa: readonly string[]): string {
  return families
    .filter(([, flags]) => isa.some((flag) => flags.test(flag)))
    .slice(0, 2)
    .map(([words]) => words)
    .join(', ');
}
