/** Values in the metadata of a GGUF file, with their stored types, so that a file can be written back as it was. */

export const ggufTypes = [
  'uint8',
  'int8',
  'uint16',
  'int16',
  'uint32',
  'int32',
  'float32',
  'bool',
  'string',
  'array',
  'uint64',
  'int64',
  'float64',
] as const;
/** Type names in the order of their numbers in the file (0 to 12). */
export type GgufType = (typeof ggufTypes)[number];

/** A 64-bit integer beyond 2^53 is a bigint, every other number a number. */
export type GgufPlain = number | bigint | boolean | string;

export type GgufValue = GgufScalar | GgufArray;

export interface GgufScalar {
  type: Exclude<GgufType, 'array'>;
  value: GgufPlain;
}

export interface GgufArray {
  type: 'array';
  items: GgufType;
  length: number;
  /** Absent where the reader was asked to skip long arrays. Items of nested arrays are GgufArray. */
  values?: readonly (GgufPlain | GgufArray)[];
}

/** Keys in file order. */
export type GgufMetadata = Map<string, GgufValue>;

/** Bytes of one item of a fixed size; strings and arrays have none. */
export const gguf_item_bytes: Readonly<Record<Exclude<GgufType, 'string' | 'array'>, number>> = {
  uint8: 1,
  int8: 1,
  uint16: 2,
  int16: 2,
  uint32: 4,
  int32: 4,
  float32: 4,
  bool: 1,
  uint64: 8,
  int64: 8,
  float64: 8,
};

export const u32 = (value: number): GgufScalar => ({ type: 'uint32', value });
export const f32 = (value: number): GgufScalar => ({ type: 'float32', value });
export const bool = (value: boolean): GgufScalar => ({ type: 'bool', value });
export const text = (value: string): GgufScalar => ({ type: 'string', value });
export const texts = (values: readonly string[]): GgufArray => ({
  type: 'array',
  items: 'string',
  length: values.length,
  values,
});
export const i32s = (values: readonly number[]): GgufArray => ({
  type: 'array',
  items: 'int32',
  length: values.length,
  values,
});
