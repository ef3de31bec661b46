/**
 * Reads that the kernel does while their caller does something else: io_submit(2) of Linux, which overlaps for files
 * that are opened with O_DIRECT. The calls have no functions in libc; numbers and layouts are those of
 * <asm/unistd.h> and <linux/aio_abi.h>.
 */
import { arch, constants } from 'node:os';
import koffi from 'koffi';
import type { Pointer } from './signature.ts';

interface CallNumbers {
  setup: number;
  destroy: number;
  getevents: number;
  submit: number;
}

const numbers: Readonly<Record<string, CallNumbers>> = {
  x64: { setup: 206, destroy: 207, getevents: 208, submit: 209 },
  arm64: { setup: 0, destroy: 1, submit: 2, getevents: 4 },
};

/** struct iocb, of which the rest is zero: IOCB_CMD_PREAD is 0, too. */
const request_bytes = 64;
const requestOffsets = { tag: 0, descriptor: 20, address: 24, bytes: 32, offset: 40 } as const;
/** struct io_event: tag, address of the request, result. */
const event_bytes = 32;
const result_offset = 16;

type Call = (
  number: number,
  a: bigint,
  b: bigint,
  c: bigint | Uint8Array,
  d: Uint8Array | null,
  e: null,
) => number;
type Setup = (number: number, depth: number, context: BigUint64Array) => number;
interface Calls {
  setup: Setup;
  /** io_getevents, io_destroy. */
  wait: Call;
  submit: (number: number, context: bigint, count: bigint, requests: BigUint64Array) => number;
}

let bound: Calls | undefined;

function calls(): Calls {
  if (bound) return bound;
  const libc = koffi.load('libc.so.6');
  bound = {
    setup: libc.func('long syscall(long number, unsigned int depth, void *context)') as Setup,
    wait: libc.func(
      'long syscall(long number, uint64_t context, int64_t least, int64_t most, void *events, void *timeout)',
    ) as Call,
    submit: libc.func(
      'long syscall(long number, uint64_t context, int64_t count, void *requests)',
    ) as Calls['submit'],
  };
  return bound;
}

export interface EndedRead {
  tag: number;
  /** Bytes, less than asked for where the file ends; or a negative errno. */
  result: number;
}

/** Reads of one thread that are under way. */
export class AsyncReads {
  readonly #numbers: CallNumbers;
  readonly #context: bigint;
  readonly #event = new Uint8Array(event_bytes);
  readonly #request = new Uint8Array(request_bytes);
  #pending = 0;

  private constructor(known: CallNumbers, context: bigint) {
    this.#numbers = known;
    this.#context = context;
  }

  /** @returns undefined where the kernel has no such calls, forbids them, or has no more of them (fs.aio-max-nr) */
  static open(depth: number): AsyncReads | undefined {
    const known = numbers[arch()];
    if (!known) return undefined;
    const context = new BigUint64Array(1);
    if (calls().setup(known.setup, depth, context) !== 0) return undefined;
    return new AsyncReads(known, context[0]!);
  }

  get pending(): number {
    return this.#pending;
  }

  /**
   * The memory is the kernel's until `next` has told of it.
   * @returns 0, or a negative errno: then nothing was begun
   */
  begin(tag: number, descriptor: number, address: Pointer, offset: number, bytes: number): number {
    const view = new DataView(this.#request.buffer);
    view.setBigUint64(requestOffsets.tag, BigInt(tag), true);
    view.setUint32(requestOffsets.descriptor, descriptor, true);
    view.setBigUint64(requestOffsets.address, address, true);
    view.setBigUint64(requestOffsets.bytes, BigInt(bytes), true);
    view.setBigUint64(requestOffsets.offset, BigInt(offset), true);
    const list = BigUint64Array.of(koffi.address(this.#request));
    if (calls().submit(this.#numbers.submit, this.#context, 1n, list) !== 1) return -koffi.errno();
    this.#pending++;
    return 0;
  }

  /** Waits for one that has ended. */
  next(): EndedRead {
    if (this.#pending === 0) throw new Error('no read is under way');
    for (;;) {
      const count = calls().wait(this.#numbers.getevents, this.#context, 1n, 1n, this.#event, null);
      if (count !== 1) {
        if (koffi.errno() === constants.errno.EINTR) continue;
        throw new Error(`io_getevents failed with errno ${koffi.errno()}`);
      }
      this.#pending--;
      const view = new DataView(this.#event.buffer);
      return {
        tag: Number(view.getBigUint64(0, true)),
        result: Number(view.getBigInt64(result_offset, true)),
      };
    }
  }

  /** Waits for those under way, whatever came of them. */
  finish(): void {
    while (this.#pending > 0) this.next();
  }

  close(): void {
    this.finish();
    calls().wait(this.#numbers.destroy, this.#context, 0n, 0n, null, null);
  }
}
