/** Sending and receiving of pieces of memory over sockets, on a native thread (native/fabric/mover.c, meeting.c). */
import { existsSync } from 'node:fs';
import koffi from 'koffi';
import { type Bound, bind, type Pointer } from '../signature.ts';
import { Completions, type Moved, MoveFailure } from './completions.ts';
import { transferLibraryPath } from './library-files.ts';
import type { MemoryPiece, TransferMemory } from './memory.ts';

const table = {
  ht_crc32c: ['u32', 'u32', 'ptr', 'usize'],
  ht_crc32c_plain: ['u32', 'u32', 'ptr', 'usize'],
  ht_mover_open: ['ptr', 'ptr', 'i64', 'i32', 'ptr'],
  ht_mover_submit: ['i32', 'ptr', 'i64', 'i32', 'i32', 'i32', 'ptr', 'ptr', 'i64', 'i64', 'i64'],
  ht_mover_close: ['void', 'ptr'],
  ht_listen: ['i32', 'str', 'i32', 'ptr'],
  ht_close: ['void', 'i32'],
  ht_shutdown: ['void', 'i32'],
} as const;

/** enum ht_kind and enum ht_flag. */
const kinds = { send: 0, receive: 1, check: 2, accept: 3, connect: 4 } as const;
const flags = { sendfile: 1, checksum: 2 } as const;

export const frame_header_bytes = 32;
export const ticket_bytes = 32;
/** HT_WORDS_BYTES. */
const words_bytes = 128;

let bound: Bound<typeof table> | undefined;

/** Whether the library was built; without a C compiler it is not, and nothing is sent. */
export function canMove(): boolean {
  return bound !== undefined || existsSync(transferLibraryPath);
}

function library(): Bound<typeof table> {
  bound ??= bind(koffi.load(transferLibraryPath), table);
  return bound;
}

/** CRC-32C of bytes after those that gave `crc`; 0 at the beginning. */
export function crc32c(bytes: Uint8Array, crc = 0): number {
  return library().ht_crc32c(crc, bytes, bytes.length);
}

/** The same by table, as CPUs compute it that have no instruction for it. */
export function crc32cPlain(bytes: Uint8Array, crc = 0): number {
  return library().ht_crc32c_plain(crc, bytes, bytes.length);
}

/** How long a job may take; both in ms. */
export interface Patience {
  /** Without a byte. */
  silence_ms: number;
  /** As a whole. */
  limit_ms: number;
}

/** A socket that listens for one peer. */
export interface Listener {
  socket: number;
  port: number;
}

/**
 * @param host an address of this machine, no name
 * @param port 0: any that is free
 * @throws MoveFailure EADDRINUSE, EADDRNOTAVAIL, EINVAL
 */
export function listenOn(host: string, port: number): Listener {
  const found = new Int32Array(1);
  const socket = library().ht_listen(host, port, found);
  if (socket < 0) throw new MoveFailure(socket, 0);
  return { socket, port: found[0]! };
}

export function closeSocket(socket: number): void {
  library().ht_close(socket);
}

/** Ends what is on its way on a socket, in both directions. */
export function shutdownSocket(socket: number): void {
  library().ht_shutdown(socket);
}

/**
 * A native thread that moves pieces of one memory, job after job in the order in which they were handed in. Bytes that
 * were sent belong to the job until it is over, and where they went by sendfile until the peer has them.
 */
export class Mover {
  readonly #handle: Pointer;
  readonly #completions: Completions;
  #closed = false;

  /** @throws Error where the system gives no thread or no pipe */
  constructor({ address, bytes, descriptor = -1 }: TransferMemory) {
    const pipe = new Int32Array(1);
    const handle = library().ht_mover_open(address, bytes, descriptor, pipe);
    if (handle === null) throw new Error(`no thread for transfers: errno ${koffi.errno()}`);
    this.#handle = handle;
    this.#completions = new Completions(pipe[0]!);
  }

  /** @throws MoveFailure */
  send(
    socket: number,
    header: Uint8Array,
    pieces: readonly MemoryPiece[],
    patience: Patience,
    { sendfile, checksum }: { sendfile: boolean; checksum: boolean },
  ): Promise<Moved> {
    const how = (sendfile ? flags.sendfile : 0) | (checksum ? flags.checksum : 0);
    return this.#submit(kinds.send, socket, how, header, pieces, patience);
  }

  /**
   * A frame with exactly this header, into pieces.
   * @throws MoveFailure EPROTO: another header came, and nothing was written
   */
  receive(
    socket: number,
    header: Uint8Array,
    pieces: readonly MemoryPiece[],
    patience: Patience,
    { checksum }: { checksum: boolean } = { checksum: true },
  ): Promise<Moved> {
    return this.#submit(kinds.receive, socket, checksum ? flags.checksum : 0, header, pieces, patience);
  }

  /** CRC-32C of pieces in order. */
  check(pieces: readonly MemoryPiece[]): Promise<Moved> {
    const patience = { silence_ms: 60_000, limit_ms: 60_000 };
    return this.#submit(kinds.check, -1, 0, new Uint8Array(0), pieces, patience);
  }

  /**
   * A peer that shows a ticket, and is shown another.
   * @returns its socket
   * @throws MoveFailure ETIMEDOUT: nobody came who has it
   */
  async accept(
    listener: number,
    expected: Uint8Array,
    answer: Uint8Array,
    limit_ms: number,
  ): Promise<number> {
    const words = Buffer.concat([expected, answer]);
    const patience = { silence_ms: limit_ms, limit_ms };
    return (await this.#submit(kinds.accept, listener, 0, words, [], patience)).result;
  }

  /**
   * @param host an address, no name
   * @throws MoveFailure EACCES: who listens there has not the ticket that answers ours
   */
  async connect(
    host: string,
    port: number,
    shown: Uint8Array,
    expected: Uint8Array,
    limit_ms: number,
  ): Promise<number> {
    const place = Buffer.alloc(words_bytes - 2 * ticket_bytes);
    place.writeUInt16LE(port, 0);
    place.write(host, 2, place.length - 3, 'latin1');
    const words = Buffer.concat([shown, expected, place]);
    const patience = { silence_ms: limit_ms, limit_ms };
    return (await this.#submit(kinds.connect, -1, 0, words, [], patience)).result;
  }

  /** Ends what it does; every job is over after it. */
  async close(): Promise<void> {
    if (!this.#closed) library().ht_mover_close(this.#handle);
    this.#closed = true;
    await this.#completions.end();
  }

  #submit(
    kind: number,
    socket: number,
    how: number,
    words: Uint8Array,
    pieces: readonly MemoryPiece[],
    { silence_ms, limit_ms }: Patience,
  ): Promise<Moved> {
    if (this.#closed) return Promise.reject(new MoveFailure(-canceled, 0));
    const said = new Uint8Array(words_bytes);
    said.set(words);
    const ranges = BigInt64Array.from(pieces.flatMap(({ offset, bytes }) => [BigInt(offset), BigInt(bytes)]));
    return this.#completions.wait((id) =>
      library().ht_mover_submit(
        this.#handle,
        id,
        kind,
        socket,
        how,
        said,
        ranges,
        pieces.length,
        Math.ceil(silence_ms),
        Math.ceil(limit_ms),
      ),
    );
  }
}

/** ECANCELED of Linux. */
const canceled = 125;
