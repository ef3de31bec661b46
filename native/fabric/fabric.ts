/** Writing to a peer's memory by libfabric, on a native thread (native/fabric/fabric.c). */
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import koffi from 'koffi';
import { type Bound, bind, type Pointer } from '../signature.ts';
import { Completions, type Moved, MoveFailure } from './completions.ts';
import { fabricLibraryPath } from './library-files.ts';
import type { MemoryCopy, TransferMemory } from './memory.ts';
import type { Patience } from './mover.ts';

const table = {
  ht_libfabric_absence: ['str'],
  ht_fabric_open: ['ptr', 'str', 'str', 'ptr', 'i64', 'ptr', 'ptr'],
  ht_fabric_name: ['i64', 'ptr', 'ptr', 'ptr', 'ptr'],
  ht_fabric_words: ['void', 'ptr', 'ptr', 'i64'],
  ht_fabric_connect: ['i32', 'ptr', 'i64', 'ptr', 'i64', 'ptr'],
  ht_fabric_probe: ['i32', 'ptr', 'i64', 'ptr', 'i64'],
  ht_fabric_probed: ['void', 'ptr', 'ptr'],
  ht_fabric_write: ['i32', 'ptr', 'i64', 'ptr', 'i64', 'i64', 'i64', 'i64'],
  ht_fabric_expect: ['void', 'ptr', 'i32'],
  ht_fabric_close: ['void', 'ptr'],
  ht_fabric_version: ['u32'],
} as const;

/** NAME_BYTES and PROBE_BYTES of fabric.c. */
export const fabric_name_bytes_max = 256;
export const probe_bytes = 64;

let bound: Bound<typeof table> | undefined;
let absent: string | undefined;

/** @returns why there is no libfabric here; undefined where there is one */
export function fabricAbsence(): string | undefined {
  if (bound) return undefined;
  if (absent !== undefined) return absent;
  if (!existsSync(fabricLibraryPath)) {
    absent = 'hpcserve was built without libfabric’s headers (libfabric-dev)';
    return absent;
  }
  try {
    const ours = bind(koffi.load(fabricLibraryPath), table);
    absent = ours.ht_libfabric_absence() ?? undefined;
    if (absent === undefined) bound = ours;
  } catch (error) {
    // Built for another system: the dynamic linker says what is missing.
    absent = (error as Error).message;
  }
  return absent;
}

/** Of the library that was loaded, as `1.17`. */
export function fabricVersion(): string {
  const version = library().ht_fabric_version();
  return `${version >>> 16}.${version & 0xffff}`;
}

function library(): Bound<typeof table> {
  const absence = fabricAbsence();
  if (!bound) throw new Error(absence);
  return bound;
}

/** How others write to an end's memory. */
export interface FabricAddress {
  /** As libfabric names the endpoint. */
  name: Uint8Array;
  /** Key and base of the memory, key and base of the bytes that show that the way works. */
  numbers: BigUint64Array;
}

/**
 * One end of a way by libfabric. Its memory is registered once, and can be written by whoever knows its address until
 * it is closed. A write that failed closes it, since what was posted cannot be recalled.
 */
export class FabricEnd {
  readonly #handle: Pointer;
  readonly #completions: Completions;
  #closed = false;

  private constructor(handle: Pointer, completions: Completions) {
    this.#handle = handle;
    this.#completions = completions;
  }

  /**
   * @param provider as libfabric names it: `cxi`, `verbs`, `efa`, `tcp`, `shm`
   * @param source address of the interface; absent: libfabric chooses
   * @throws Error in libfabric's words
   */
  static async open(provider: string, source: string, memory: TransferMemory): Promise<FabricEnd> {
    const pipe = new Int32Array(1);
    // Providers that let us choose keys compare all 64 bits: who was not told cannot write.
    const random = randomBytes(16);
    const keys = BigUint64Array.of(random.readBigUInt64LE(0), random.readBigUInt64LE(8));
    const handle = library().ht_fabric_open(provider, source, memory.address, memory.bytes, keys, pipe);
    if (handle === null) throw new Error(`no thread for libfabric: errno ${koffi.errno()}`);
    const completions = new Completions(pipe[0]!);
    const end = new FabricEnd(handle, completions);
    try {
      await completions.wait(() => 0, 0n);
      return end;
    } catch (error) {
      const words = end.words();
      await end.close();
      throw new Error(words || (error as Error).message);
    }
  }

  /** What others need to write here. */
  get address(): FabricAddress {
    const name = new Uint8Array(fabric_name_bytes_max);
    const numbers = new BigUint64Array(4);
    const length = library().ht_fabric_name(this.#handle, name, numbers, new Uint8Array(64));
    return { name: name.slice(0, Number(length)), numbers };
  }

  /** Of the provider with its layers, as `tcp;ofi_rxm`. */
  get provider(): string {
    const provider = new Uint8Array(64);
    const name = new Uint8Array(fabric_name_bytes_max);
    library().ht_fabric_name(this.#handle, name, new BigUint64Array(4), provider);
    return Buffer.from(provider.subarray(0, provider.indexOf(0))).toString('latin1');
  }

  /** Of the last failure, in libfabric's words; empty where there was none. */
  words(): string {
    const words = new Uint8Array(256);
    library().ht_fabric_words(this.#handle, words, words.length);
    return Buffer.from(words.subarray(0, words.indexOf(0))).toString('utf8');
  }

  /** @throws MoveFailure */
  connect({ name, numbers }: FabricAddress): Promise<Moved> {
    return this.#wait((id) => library().ht_fabric_connect(this.#handle, id, name, name.length, numbers));
  }

  /**
   * Writes bytes where the peer looks for them.
   * @throws MoveFailure
   */
  probe(bytes: Uint8Array, limit_ms: number): Promise<Moved> {
    return this.#wait((id) => library().ht_fabric_probe(this.#handle, id, bytes, limit_ms));
  }

  /** What a peer has written with `probe`. */
  probed(): Uint8Array {
    const bytes = new Uint8Array(probe_bytes);
    library().ht_fabric_probed(this.#handle, bytes);
    return bytes;
  }

  /**
   * Resolves when the peer's memory has all of it.
   * @param target_bytes of the peer's memory
   * @throws MoveFailure; then this end is closed
   */
  write(
    copies: readonly MemoryCopy[],
    target_bytes: number,
    { silence_ms, limit_ms }: Patience,
  ): Promise<Moved> {
    const words = copies.flatMap(({ from, to, bytes }) => [BigInt(from), BigInt(to), BigInt(bytes)]);
    const ranges = BigInt64Array.from(words);
    return this.#wait((id) =>
      library().ht_fabric_write(
        this.#handle,
        id,
        ranges,
        copies.length,
        target_bytes,
        Math.ceil(silence_ms),
        Math.ceil(limit_ms),
      ),
    );
  }

  /** Whether writes of a peer are expected: then providers that wait on nothing are looked at often. */
  expect(active: boolean): void {
    if (!this.#closed) library().ht_fabric_expect(this.#handle, active ? 1 : 0);
  }

  /** Nothing is written to or from our memory after it. */
  async close(): Promise<void> {
    if (!this.#closed) {
      this.#closed = true;
      library().ht_fabric_close(this.#handle);
    }
    await this.#completions.end();
  }

  #wait(begin: (id: bigint) => number): Promise<Moved> {
    if (this.#closed) return Promise.reject(new MoveFailure(-not_connected, 0));
    return this.#completions.wait(begin);
  }
}

/** ENOTCONN of Linux. */
const not_connected = 107;
