import { randomBytes } from 'node:crypto';
import { closeSync, openSync, readSync, statfsSync, unlinkSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { systemMessage } from '../../spec/errors/system-error.ts';

/** After a failure it is left alone for so long. Lower: used again sooner; higher: fewer tries of one that is full. */
const rest_ms = 60_000;
/** What a disk is taken for until it was written and read. */
const assumed_bytes_per_s = 500e6;
/** Weight of the latest measurement. Lower: steadier; higher: follows a disk that slows down. */
const latest_share = 0.25;
/** What counts as a whole one. Lower: one slow write of a few rows decides; higher: its rate is known later. */
const measured_bytes = 64e6;
/** A rate that is older counts no more: an unused disk is not measured. Lower: a slow one is tried more often. */
const rate_ms_max = 10 * rest_ms;
/** Of what is free at the moment: workers of a node write beside each other, and other people do. */
const free_share = 0.5;
/**
 * A sequence that takes so much longer than the disk's rate says, and some seconds, is given up. Lower: sooner; higher:
 * nothing else is computed meanwhile.
 */
const patience = { factor: 4, ms_min: 10_000 };

/**
 * Disk of the node on which keys and values wait of sequences that gave way. Each sequence has a file whose name is
 * taken away at once: nobody else opens it, and nothing of it outlives the process, however that ends. Where the disk
 * fails (full, broken), who parks there is computed again, and it is left alone for a while.
 */
export class ParkingDisk {
  /** Of all sequences together. */
  readonly bytes_max: number;
  /** What went wrong last; absent: nothing. */
  trouble: string | undefined;
  readonly #folder: string;
  readonly #now_ms: () => number;
  readonly #s_per_byte = { write: 1 / assumed_bytes_per_s, read: 1 / assumed_bytes_per_s };
  #failed_ms = Number.NEGATIVE_INFINITY;
  #measured_ms = Number.NEGATIVE_INFINITY;

  constructor(folder: string, bytes_max: number, now_ms = () => performance.now()) {
    this.#folder = folder;
    this.bytes_max = bytes_max;
    this.#now_ms = now_ms;
  }

  get usable(): boolean {
    return this.#now_ms() - this.#failed_ms >= rest_ms;
  }

  /** To it and back. */
  get bytes_per_s(): number {
    if (this.#now_ms() - this.#measured_ms > rate_ms_max) return assumed_bytes_per_s / 2;
    return 1 / (this.#s_per_byte.write + this.#s_per_byte.read);
  }

  /**
   * @param bytes that are going to be written
   * @throws ParkingFailure
   */
  create(bytes: number): ParkingFile {
    const path = join(this.#folder, `hpcserve-kv-${process.pid}-${randomBytes(8).toString('hex')}`);
    const descriptor = this.#noted(() => {
      const { bavail, bsize } = statfsSync(this.#folder);
      if (bytes > free_share * bavail * bsize) throw new Error('others need what is free of the disk');
      return openedWithoutName(path);
    });
    const given_up_ms =
      performance.now() + patience.ms_min + (patience.factor * 1000 * bytes) / this.bytes_per_s;
    return new ParkingFile(descriptor, (way, count, transfer) =>
      this.#timed(way, count, () => {
        if (way === 'write' && performance.now() > given_up_ms)
          throw new Error('the disk takes far longer than it did');
        transfer();
      }),
    );
  }

  #timed(way: 'write' | 'read', bytes: number, transfer: () => void): void {
    const began_ms = performance.now();
    this.#noted(transfer);
    const s_per_byte = (performance.now() - began_ms) / 1000 / Math.max(1, bytes);
    const share = latest_share * Math.min(1, bytes / measured_bytes);
    this.#s_per_byte[way] += share * (s_per_byte - this.#s_per_byte[way]);
    this.#measured_ms = this.#now_ms();
  }

  #noted<T>(work: () => T): T {
    try {
      return work();
    } catch (error) {
      this.trouble = systemMessage(error);
      this.#failed_ms = this.#now_ms();
      throw new ParkingFailure(this.trouble, { cause: error });
    }
  }
}

function openedWithoutName(path: string): number {
  const descriptor = openSync(path, 'wx+', 0o600);
  try {
    unlinkSync(path);
  } catch (error) {
    closeSync(descriptor);
    throw error;
  }
  return descriptor;
}

/** The disk does not take bytes, or does not give them back. */
export class ParkingFailure extends Error {}

/** A file that is written once, and then read once, from its beginning to its end. */
export class ParkingFile {
  readonly #descriptor: number;
  readonly #timed: (way: 'write' | 'read', bytes: number, transfer: () => void) => void;
  #written_bytes = 0;
  #read_bytes = 0;

  constructor(
    descriptor: number,
    timed: (way: 'write' | 'read', bytes: number, transfer: () => void) => void,
  ) {
    this.#descriptor = descriptor;
    this.#timed = timed;
  }

  /** @throws ParkingFailure */
  write(from: Uint8Array): void {
    this.#timed('write', from.length, () => {
      for (let done = 0; done < from.length; ) {
        const count = writeSync(this.#descriptor, from, done, from.length - done, this.#written_bytes + done);
        if (count === 0) throw new Error('a parking file takes nothing any more');
        done += count;
      }
    });
    this.#written_bytes += from.length;
  }

  /** @throws ParkingFailure */
  read(into: Uint8Array): void {
    this.#timed('read', into.length, () => {
      for (let done = 0; done < into.length; ) {
        const count = readSync(this.#descriptor, into, done, into.length - done, this.#read_bytes + done);
        if (count === 0) throw new Error('a parking file has ended before its time');
        done += count;
      }
    });
    this.#read_bytes += into.length;
  }

  close(): void {
    closeSync(this.#descriptor);
  }
}
