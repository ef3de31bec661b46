/**
 * Storage types of tensors in GGUF files: how many elements a block holds and how many bytes it takes.
 * Source: `ggml_blck_size` and `ggml_type_size` of ggml 0.25; a test holds this table against the library.
 */

export interface GgmlTypeTraits {
  /** Number in the file. */
  id: number;
  /** Name as people write it: Q4_0, BF16, … */
  name: string;
  /** Elements per block along the first dimension. */
  block_elements: number;
  block_bytes: number;
}

const table: readonly [id: number, name: string, block_elements: number, block_bytes: number][] = [
  [0, 'F32', 1, 4],
  [1, 'F16', 1, 2],
  [2, 'Q4_0', 32, 18],
  [3, 'Q4_1', 32, 20],
  [6, 'Q5_0', 32, 22],
  [7, 'Q5_1', 32, 24],
  [8, 'Q8_0', 32, 34],
  [9, 'Q8_1', 32, 36],
  [10, 'Q2_K', 256, 84],
  [11, 'Q3_K', 256, 110],
  [12, 'Q4_K', 256, 144],
  [13, 'Q5_K', 256, 176],
  [14, 'Q6_K', 256, 210],
  [15, 'Q8_K', 256, 292],
  [16, 'IQ2_XXS', 256, 66],
  [17, 'IQ2_XS', 256, 74],
  [18, 'IQ3_XXS', 256, 98],
  [19, 'IQ1_S', 256, 50],
  [20, 'IQ4_NL', 32, 18],
  [21, 'IQ3_S', 256, 110],
  [22, 'IQ2_S', 256, 82],
  [23, 'IQ4_XS', 256, 136],
  [24, 'I8', 1, 1],
  [25, 'I16', 1, 2],
  [26, 'I32', 1, 4],
  [27, 'I64', 1, 8],
  [28, 'F64', 1, 8],
  [29, 'IQ1_M', 256, 56],
  [30, 'BF16', 1, 2],
  [34, 'TQ1_0', 256, 54],
  [35, 'TQ2_0', 256, 66],
  [39, 'MXFP4', 32, 17],
  [40, 'NVFP4', 64, 36],
  [41, 'Q1_0', 128, 18],
  [42, 'Q2_0', 64, 18],
];

export const ggmlTypes: readonly GgmlTypeTraits[] = table.map(([id, name, block_elements, block_bytes]) => ({
  id,
  name,
  block_elements,
  block_bytes,
}));

const byId = new Map(ggmlTypes.map((traits) => [traits.id, traits]));
const byName = new Map(ggmlTypes.map((traits) => [traits.name, traits]));

/** Traits of a type number as it stands in a file; undefined for unknown and for removed types. */
export function ggmlTypeById(id: number): GgmlTypeTraits | undefined {
  return byId.get(id);
}

/** Traits of a type by its name; the name must be one of the table. */
export function ggmlTypeByName(name: string): GgmlTypeTraits {
  const traits = byName.get(name);
  if (traits === undefined) throw new RangeError(`no ggml type is called ${name}`);
  return traits;
}

/** Bytes of a row of `elements`, which must be a multiple of the block size. */
export function ggmlRow_bytes(traits: GgmlTypeTraits, elements: number): number {
  return (elements / traits.block_elements) * traits.block_bytes;
}
