import { closeSync, fstatSync, openSync, readSync, type Stats } from 'node:fs';
import { HpcserveError } from '../../spec/errors/error.ts';

/** Larger: fewer reads; smaller: less memory. Headers of real models are 1 to 20 MiB. */
const window_bytes = 256 * 1024;

/**
 * Reads a file front to back through a small window, so that a header of any size costs little memory and
 * a network filesystem sees few, large reads. Synchronous: parsers stay straight-line code, and a header is
 * read in milliseconds.
 */
export class FileWindow implements Disposable {
  readonly path: string;
  readonly size: number;
  readonly mtime_ms: number;
  readonly #descriptor: number;
  #window = Buffer.alloc(0);
  #windowStart = 0;
  #position = 0;

  /** Throws E_MODEL_MISSING, E_MODEL_UNREADABLE (no regular file, no permission) or E_MODEL_EMPTY. */
  constructor(path: string) {
    this.path = path;
    this.#descriptor = translate(path, () => openSync(path, 'r'));
    try {
      const stat: Stats = translate(path, () => fstatSync(this.#descriptor));
      if (!stat.isFile()) {
        throw new HpcserveError('E_MODEL_UNREADABLE', {
          what: `${path} is not a regular file`,
          because: stat.isDirectory() ? 'it is a folder' : 'it is a device, a pipe or a socket',
        });
      }
      if (stat.size === 0) throw new HpcserveError('E_MODEL_EMPTY', { what: `${path} is empty (0 bytes)` });
      this.size = stat.size;
      this.mtime_ms = stat.mtimeMs;
    } catch (error) {
      closeSync(this.#descriptor);
      throw error;
    }
  }

  [Symbol.dispose](): void {
    closeSync(this.#descriptor);
  }

  get position(): number {
    return this.#position;
  }

  get remaining(): number {
    return this.size - this.#position;
  }

  /** The next `count` bytes; valid until the next call. Throws E_MODEL_CUT_OFF beyond the end. */
  bytes(count: number, what: string): Buffer {
    this.#need(count, what);
    let start = this.#position - this.#windowStart;
    if (start < 0 || start + count > this.#window.length) {
      this.#fill(Math.max(count, Math.min(window_bytes, this.remaining)));
      start = 0;
    }
    this.#position += count;
    return this.#window.subarray(start, start + count);
  }

  /** Goes back (or forth) to a position inside the file. */
  rewind(position: number): void {
    this.#position = position;
  }

  skip(count: number, what: string): void {
    this.#need(count, what);
    this.#position += count;
  }

  u32(what: string): number {
    return this.bytes(4, what).readUInt32LE();
  }

  /** As a bigint: counts and offsets of a hostile file may exceed 2^53. */
  u64(what: string): bigint {
    return this.bytes(8, what).readBigUInt64LE();
  }

  #need(count: number, what: string): void {
    if (count <= this.remaining) return;
    throw new HpcserveError('E_MODEL_CUT_OFF', {
      what: `${this.path} ends inside its header`,
      because: `${what} needs bytes ${this.#position} to ${this.#position + count}, the file has ${this.size}`,
      details: { path: this.path, file_bytes: this.size },
    });
  }

  #fill(count: number): void {
    const buffer = count <= window_bytes ? Buffer.allocUnsafe(window_bytes) : Buffer.allocUnsafe(count);
    let filled = 0;
    while (filled < count) {
      const got = translate(this.path, () =>
        readSync(this.#descriptor, buffer, filled, count - filled, this.#position + filled),
      );
      if (got === 0) {
        throw new HpcserveError('E_MODEL_CUT_OFF', {
          what: `${this.path} became shorter while it was read`,
          because: `it had ${this.size} bytes when it was opened and ends at ${this.#position + filled} now`,
        });
      }
      filled += got;
    }
    this.#window = buffer.subarray(0, count);
    this.#windowStart = this.#position;
  }
}

/** Runs a filesystem call and turns its errors into ours; `path` is the model file in question. */
export function translate<T>(path: string, call: () => T): T {
  try {
    return call();
  } catch (error) {
    throw modelFileError(path, error);
  }
}

/** What a failed filesystem call on a model's file or folder means. */
export function modelFileError(path: string, error: unknown): unknown {
  const code = (error as NodeJS.ErrnoException).code;
  if (code === 'ENOENT' || code === 'ENOTDIR') {
    return new HpcserveError('E_MODEL_MISSING', { what: `${path} does not exist`, cause: error });
  }
  if (typeof code === 'string') {
    return new HpcserveError('E_MODEL_UNREADABLE', {
      what: `${path} cannot be read`,
      because: (error as Error).message,
      cause: error,
    });
  }
  return error;
}
