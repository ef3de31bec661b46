/**
 * Loads tensors of a model file into a pool with several threads. The caller's thread works with them and comes
 * back when every byte is in its place, or when something failed and no thread writes any more.
 *
 * Bytes come from the page cache, which is the host-memory model cache: where they are in it already, they are
 * converted from where they lie, under a lease on the file; else they are read in large pieces, by as many threads
 * as there are, so that reading and conversion overlap.
 */
import { closeSync, fstatSync, openSync } from 'node:fs';
import { MessageChannel, type MessagePort, Worker } from 'node:worker_threads';
import { releaseLease, takeLease } from '../../../native/file-lease.ts';
import type { Ggml } from '../../../native/ggml.ts';
import { mapFile, unmap } from '../../../native/memory-map.ts';
import type { Pointer } from '../../../native/signature.ts';
import type { LoadProgress } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { type FileVersion, fileVersion, versionChanges } from '../file-version.ts';
import type { PoolMemory } from '../pool-memory.ts';
import { LoadCounters, type LoadWork } from './load-work.ts';
import { cutIntoUnits, type TensorLoad } from './pieces.ts';
import { UnitLoader } from './unit-loader.ts';

/**
 * Bytes of a unit. Measured by `bench/reuse` on the page cache: rates are flat from 256 KiB on and fall above the
 * second-level cache where layouts are converted. Lower: more calls; higher: fewer, and conversion out of memory.
 */
const default_unit_bytes = 1024 * 1024;
/** A unit takes milliseconds, seconds from a slow disk: after this long without a byte, the file hangs. */
const stall_ms = 60_000;
const wait_ms = 50;

export interface TensorLoaderOptions {
  /** All threads, the caller's included; with others that compute, never more than the device's cores. */
  threads: number;
  unit_bytes?: number;
  /** Reads through a mapping where that is safe; false: pread only. Default true. */
  mapped?: boolean;
}

export class TensorLoader {
  readonly #memory: PoolMemory;
  readonly #unitLoader: UnitLoader;
  readonly #options: Required<TensorLoaderOptions>;
  readonly #folder: string;
  readonly #helpers: { worker: Worker; port: MessagePort }[] = [];

  constructor(ggml: Ggml, memory: PoolMemory, options: TensorLoaderOptions) {
    this.#memory = memory;
    this.#unitLoader = new UnitLoader(ggml);
    this.#folder = ggml.libraries.folder;
    this.#options = { unit_bytes: default_unit_bytes, mapped: true, ...options };
  }

  /**
   * @param file the version of it that the tensors were taken from
   * @throws HpcserveError E_POOL_LOAD: the file cannot be read, is shorter than it was, or has changed; then the
   *   places of the tensors hold nothing of use, and no thread writes to them any more unless
   *   `details.still_writing` is true
   */
  load(
    file: FileVersion,
    tensors: readonly TensorLoad[],
    onProgress: (progress: LoadProgress) => void = () => undefined,
  ): void {
    if (tensors.length === 0) return;
    const descriptor = openModel(file.path);
    const leased =
      this.#options.mapped && tensors.some(({ layout }) => layout !== 0) && takeLease(descriptor);
    let mapping: Pointer | undefined;
    let stuck = false;
    try {
      checkVersion(file, descriptor);
      if (leased) mapping = mapFile(descriptor, 0, Number(file.size_bytes));
      this.#run(descriptor, file.path, mapping, tensors, onProgress);
      checkVersion(file, descriptor);
    } catch (error) {
      stuck = error instanceof HpcserveError && error.details?.still_writing === true;
      throw error;
    } finally {
      // A thread that hangs in a read still has both in its hands.
      if (!stuck) {
        if (mapping !== undefined) unmap(mapping, Number(file.size_bytes));
        if (leased) releaseLease(descriptor);
        closeSync(descriptor);
      }
    }
  }

  /** Ends the threads. No load may be under way. */
  async close(): Promise<void> {
    this.#unitLoader.free();
    await Promise.all(this.#helpers.splice(0).map(({ worker }) => worker.terminate()));
  }

  #run(
    descriptor: number,
    path: string,
    mapping: Pointer | undefined,
    tensors: readonly TensorLoad[],
    onProgress: (progress: LoadProgress) => void,
  ): void {
    const counters = new LoadCounters();
    const units = cutIntoUnits(tensors, this.#options.unit_bytes);
    const work: LoadWork = {
      descriptor,
      path,
      ...(mapping !== undefined && { mapping }),
      layouts: this.#memory.layouts.map(({ buffer, base }) => ({ buffer, base })),
      units,
      counters: counters.shared,
    };
    const bytes_total = units.reduce((sum, unit) => unit.reduce((part, { bytes }) => part + bytes, sum), 0);
    const started = performance.now();
    const report = (): void =>
      onProgress({ bytes_loaded: counters.bytes, bytes_total, elapsed_ms: performance.now() - started });
    const helpers = Math.min(this.#options.threads, units.length) - 1;
    for (const { port } of this.#helpersUpTo(helpers)) port.postMessage(work);
    this.#unitLoader.run(work, report);
    waitForOthers(counters, path);
    report();
    const failure = counters.failure;
    if (failure) throw new HpcserveError('E_POOL_LOAD', { ...failure });
  }

  #helpersUpTo(count: number): readonly { port: MessagePort }[] {
    while (this.#helpers.length < count) {
      const { port1, port2 } = new MessageChannel();
      const worker = new Worker(threadFile(), {
        workerData: { port: port2, folder: this.#folder },
        transferList: [port2],
      });
      worker.unref();
      port1.unref();
      this.#helpers.push({ worker, port: port1 });
    }
    return this.#helpers.slice(0, count);
  }
}

/** Threads need compiled JavaScript: Node 20 runs no TypeScript. */
function threadFile(): URL {
  return import.meta.url.endsWith('.ts')
    ? new URL('../../../dist/agent/memory/load/load-thread.js', import.meta.url)
    : new URL('./load-thread.js', import.meta.url);
}

function waitForOthers(counters: LoadCounters, path: string): void {
  let bytes = -1;
  let since = 0;
  for (let active = counters.active; active > 0; active = counters.active) {
    if (counters.bytes > bytes) {
      bytes = counters.bytes;
      since = performance.now();
    }
    if (performance.now() - since > stall_ms)
      throw new HpcserveError('E_POOL_LOAD', {
        what: `${path} is not read on`,
        because: `no byte came in ${stall_ms / 1000} s: its disk or filesystem hangs`,
        details: { still_writing: true },
      });
    counters.wait(active, wait_ms);
  }
}

function openModel(path: string): number {
  try {
    return openSync(path, 'r');
  } catch (error) {
    throw new HpcserveError('E_POOL_LOAD', {
      what: `${path} cannot be opened`,
      because: (error as Error).message,
      cause: error,
    });
  }
}

function checkVersion(file: FileVersion, descriptor: number): void {
  const changed = versionChanges(file, fileVersion(file.path, fstatSync(descriptor, { bigint: true })));
  if (changed.length === 0) return;
  throw new HpcserveError('E_POOL_LOAD', {
    what: `${file.path} changed while its weights were read`,
    because: `${changed.join(', ')} ${changed.length === 1 ? 'is' : 'are'} not what it was when its header was read`,
    try: 'write models to a new name and rename them into place',
  });
}
