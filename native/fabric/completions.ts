import { Socket } from 'node:net';
import { getSystemErrorName } from 'node:util';

/** What came of a job of a native thread. */
export interface Moved {
  /** A descriptor where the job makes one, else 0. */
  result: number;
  bytes: number;
  /** CRC-32C of the bytes in order, where it was asked for. */
  checksum: number;
  /** Processor time of the thread. */
  cpu_ms: number;
}

/** A job failed: `code` is errno's name. */
export class MoveFailure extends Error {
  readonly code: string;
  /** Bytes that were moved before. */
  readonly moved_bytes: number;

  constructor(errno: number, moved_bytes: number) {
    const code = getSystemErrorName(errno);
    super(`${code} after ${moved_bytes} bytes`);
    this.code = code;
    this.moved_bytes = moved_bytes;
  }
}

/** struct ht_done of native/fabric/transfer.h: five words of 64 bits. */
const record_bytes = 40;

interface Waiting {
  resolve: (moved: Moved) => void;
  reject: (failure: MoveFailure) => void;
}

/** The jobs of one native thread that are not over; their ends come over a pipe, which the event loop watches. */
export class Completions {
  readonly #pipe: Socket;
  readonly #waiting = new Map<bigint, Waiting>();
  readonly #closed: Promise<void>;
  #rest: Buffer = Buffer.alloc(0);
  #next = 1n;

  /** @param descriptor of the pipe, its own from now on */
  constructor(descriptor: number) {
    this.#pipe = new Socket({ fd: descriptor, readable: true, writable: false });
    this.#closed = new Promise((resolve) => this.#pipe.once('close', () => resolve()));
    this.#pipe.on('data', (bytes: Buffer) => this.#take(bytes));
    this.#pipe.unref();
  }

  /** Resolves when all ends were told, after the thread was told to end. */
  end(): Promise<void> {
    this.#pipe.ref();
    return this.#closed;
  }

  /**
   * @param begin hands the job in under a number, and returns 0 or a negative errno
   * @throws MoveFailure
   */
  wait(begin: (id: bigint) => number, id = this.#next++): Promise<Moved> {
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#pipe.ref();
      const status = begin(id);
      if (status === 0) return;
      this.#forget(id);
      reject(new MoveFailure(status, 0));
    });
  }

  #take(bytes: Buffer): void {
    const all = this.#rest.length > 0 ? Buffer.concat([this.#rest, bytes]) : bytes;
    let at = 0;
    for (; at + record_bytes <= all.length; at += record_bytes)
      this.#tell(all.subarray(at, at + record_bytes));
    this.#rest = Buffer.from(all.subarray(at));
  }

  #tell(record: Buffer): void {
    const word = (index: number): number => Number(record.readBigInt64LE(8 * index));
    const id = record.readBigInt64LE(0);
    const waiting = this.#waiting.get(id);
    if (!waiting) return;
    this.#forget(id);
    const [, status = 0, moved_bytes = 0, checksum = 0, cpu_ns = 0] = [0, 1, 2, 3, 4].map(word);
    if (status < 0) waiting.reject(new MoveFailure(status, moved_bytes));
    else waiting.resolve({ result: status, bytes: moved_bytes, checksum, cpu_ms: cpu_ns / 1e6 });
  }

  #forget(id: bigint): void {
    this.#waiting.delete(id);
    // A process that waits for nothing else may end.
    if (this.#waiting.size === 0) this.#pipe.unref();
  }
}
