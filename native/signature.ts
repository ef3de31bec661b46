/**
 * One table per foreign library says its C signatures; the TypeScript types of the bound functions are
 * derived from the same table, so that a signature is written once.
 */
import type koffi from 'koffi';

type LibraryHandle = ReturnType<typeof koffi.load>;
type TypeSpec = Parameters<typeof koffi.sizeof>[0];

/** An address in this process. Valid in every worker thread; never across processes. */
export type Pointer = bigint;

/** What may be passed where C wants a pointer: an address, memory of ours, or NULL. */
export type PointerArgument = Pointer | ArrayBufferView | null;

/** C types by the short names that the tables use. Structs passed by value are koffi type objects. */
interface ScalarTypes {
  void: undefined;
  bool: boolean;
  i8: number;
  i16: number;
  u8: number;
  u16: number;
  i32: number;
  u32: number;
  i64: number;
  u64: number;
  usize: number;
  f32: number;
  f64: number;
  /** A NUL-terminated UTF-8 string; null where C returns NULL. */
  str: string;
  ptr: Pointer;
}

export type ScalarName = keyof ScalarTypes;

const koffiNames: Record<ScalarName, string> = {
  void: 'void',
  bool: 'bool',
  i8: 'int8_t',
  i16: 'int16_t',
  u8: 'uint8_t',
  u16: 'uint16_t',
  i32: 'int32_t',
  u32: 'uint32_t',
  i64: 'int64_t',
  u64: 'uint64_t',
  usize: 'size_t',
  f32: 'float',
  f64: 'double',
  str: 'str',
  ptr: 'void *',
};

/** A C struct passed or returned by value, with the TypeScript shape of its fields. */
export interface StructType<Fields> {
  readonly koffi: TypeSpec;
  /** Never read: carries the field types. */
  readonly fields?: Fields;
}

type TypeName = ScalarName | StructType<unknown>;
type ResultOf<T> =
  T extends StructType<infer F>
    ? F
    : T extends 'ptr'
      ? Pointer | null
      : T extends 'str'
        ? string | null
        : T extends ScalarName
          ? ScalarTypes[T]
          : never;
type ArgumentOf<T> =
  T extends StructType<infer F>
    ? F
    : T extends 'ptr'
      ? PointerArgument
      : T extends 'str'
        ? string | null
        : T extends 'i64' | 'u64' | 'usize'
          ? number | bigint
          : T extends ScalarName
            ? ScalarTypes[T]
            : never;

/** Result type first, then the arguments. */
export type Signature = readonly [result: TypeName, ...args: TypeName[]];
export type SignatureTable = Record<string, Signature>;

export type Bound<Table extends SignatureTable> = {
  readonly [Name in keyof Table]: Table[Name] extends readonly [infer R, ...infer A]
    ? (...args: { [I in keyof A]: ArgumentOf<A[I]> }) => ResultOf<R>
    : never;
};

/**
 * Binds every function of the table. A symbol that the library lacks throws koffi's error, which names it.
 */
export function bind<const Table extends SignatureTable>(library: LibraryHandle, table: Table): Bound<Table> {
  const bound: Record<string, unknown> = {};
  for (const [name, [result, ...args]] of Object.entries(table))
    bound[name] = library.func(name, koffiType(result), args.map(koffiType));
  return bound as Bound<Table>;
}

function koffiType(type: TypeName): TypeSpec {
  return typeof type === 'string' ? koffiNames[type] : type.koffi;
}
