import { MessageChannel, type MessagePort, Worker } from 'node:worker_threads';
import { pageCacheRoom_bytes } from '../../../host/page-cache-room.ts';
import { compiledFile } from '../../../host/programs.ts';
import { fitsHostCache } from '../../../solver/reuse/host-cache.ts';
import type { LoadProgress } from '../../../spec/engine-contract.ts';
import type { Backend } from '../../backend/backend.ts';
import type { PoolMemory } from '../../backend/pool-memory.ts';
import type { LoadBeside } from '../../engine/weights.ts';
import type { ContentHashes } from '../content-hashes.ts';
import type { FileVersion } from '../file-version.ts';
import { PeerShare } from '../peers/peer-share.ts';
import type { residentRanges } from '../peers/shared-tensors.ts';
import { LoadCounters, type LoadWork } from './load-work.ts';
import { type FileAccess, type FileMapping, OpenModelFile } from './open-model-file.ts';
import { cutIntoUnits, placesOf, type TensorLoad } from './pieces.ts';
import { TensorLoading } from './tensor-loading.ts';
import { UnitLoader } from './unit-loader.ts';

/** Threads need compiled JavaScript: Node 20 runs no TypeScript. */
const threadFile = compiledFile('agent/memory/load/load-thread.js');

/**
 * Bytes of a unit. Measured by `bench/reuse` on the page cache: rates are flat from 256 KiB on and fall above the
 * second-level cache where layouts are converted. Lower: more calls; higher: fewer, and conversion out of memory.
 */
const default_unit_bytes = 1024 * 1024;
/** Of all threads, how many load while others compute. Lower: others are disturbed less; higher: the load is faster. */
const busy_share = 0.25;

export interface TensorLoaderOptions {
  /** All threads, the caller's included; with others that compute, never more than the device's cores. */
  threads: number;
  unit_bytes?: number;
  /** Reads through a mapping where that is safe; false: pread only. Default true. */
  mapped?: boolean;
  /**
   * Files stay mapped until `unmapFiles`: loads of the same file that follow find its pages in the page table, rather
   * than ask the page cache for each of them and map it anew. Default false.
   */
  stays_mapped?: boolean;
  /**
   * Whether a load of so many bytes is read past the page cache, where the filesystem allows it. Default: where the
   * page cache cannot hold them.
   */
  past_cache?: (load_bytes: number) => boolean;
  /**
   * Unix socket of the node agent, which reaches peers that have tensors in memory; absent: all comes from the file.
   */
  peers_socket?: string;
  /**
   * Of ranges of a file, which are in memory here, so that no peer is asked for them. Default: what the kernel says.
   */
  resident?: typeof residentRanges;
  /** Where fewer bytes than this are missing here, peers are not asked. Default: 64 MiB. */
  peer_bytes_min?: number;
}

/** A loading thread. */
interface Helper {
  worker: Worker;
  port: MessagePort;
}

/**
 * Loads tensors of a model file into a pool with several threads. The caller's thread goes on with what it has to do,
 * or works with them.
 *
 * Bytes come from the page cache, which is the host-memory model cache: where they are in it already, they are
 * converted or copied from where they lie, under a lease on the file; else they are read in large pieces, by as many
 * threads as there are, so that reading and conversion overlap. A load that the page cache cannot hold is read past
 * it (O_DIRECT). On their way past the cache, or to a device, units go through a ring of each thread (`UnitRing`).
 */
export class TensorLoader {
  readonly #memory: PoolMemory;
  readonly #upload: LoadWork['upload'];
  readonly #unitLoader: UnitLoader;
  readonly #options: Required<Omit<TensorLoaderOptions, 'peers_socket' | 'resident' | 'peer_bytes_min'>>;
  readonly #peers: PeerShare | undefined;
  readonly #folder: string;
  /** Filesystems that do not read past the page cache, by the device of their files. */
  readonly #refusing = new Set<bigint>();
  readonly #helpers: Helper[] = [];
  /** That stay, by path. */
  readonly #mappings = new Map<string, FileMapping>();
  /** That have a read in hand which hangs: they end once it is over. */
  readonly #retired = new Set<Helper>();

  constructor(
    { ggml, upload }: Backend,
    memory: PoolMemory,
    { peers_socket, resident, peer_bytes_min, ...options }: TensorLoaderOptions,
  ) {
    this.#memory = memory;
    this.#upload = upload;
    this.#unitLoader = new UnitLoader(ggml);
    this.#folder = ggml.libraries.folder;
    const past_cache = (load_bytes: number): boolean => !this.#cacheKeeps(load_bytes);
    const defaults = { unit_bytes: default_unit_bytes, mapped: true, stays_mapped: false, past_cache };
    this.#options = { ...defaults, ...options };
    this.#peers =
      peers_socket === undefined
        ? undefined
        : new PeerShare(peers_socket, this.#folder, resident, peer_bytes_min);
  }

  /**
   * Sets threads to work.
   * @param file the version of it that the tensors were taken from
   * @param contents hashes of the file's tensors, where they are known: peers that have them in memory are asked, too
   * @throws HpcserveError E_POOL_LOAD: the file cannot be read, or has changed
   */
  begin(
    file: FileVersion,
    tensors: readonly TensorLoad[],
    beside: LoadBeside = 'nobody',
    onProgress: (progress: LoadProgress) => void = () => undefined,
    contents?: ContentHashes,
  ): TensorLoading {
    const { unit_bytes } = this.#options;
    const source = new OpenModelFile(file, this.#accessTo(file, tensors));
    if (source.direct_refused !== undefined) this.#refusing.add(file.device);
    if (this.#options.stays_mapped) this.#keepMapping(file.path, source.mapping);
    const offered = contents && this.#peers?.cut(file, tensors, unit_bytes, contents);
    const work: LoadWork = {
      descriptor: source.descriptor,
      path: file.path,
      size_bytes: Number(file.size_bytes),
      mapping: source.mapping?.address,
      direct: source.direct,
      layouts: this.#memory.layouts.map(({ spans }) => spans),
      upload: this.#upload,
      units: offered?.units ?? cutIntoUnits(tensors, unit_bytes),
      shared: offered?.shared,
      huge: this.#memory.hugeRanges?.(placesOf(tensors)) ?? [],
      counters: new LoadCounters().shared,
    };
    const told = new Set<Helper>();
    const start = (begun: LoadWork): ReturnType<UnitLoader['open']> => {
      const helpers = helpersBeside(beside, this.#options.threads);
      for (const helper of this.#helpersUpTo(Math.min(helpers, begun.units.length))) {
        told.add(helper);
        helper.port.postMessage(begun);
      }
      return this.#unitLoader.open(begun);
    };
    const fetching = offered && this.#peers!.begin(work, offered);
    const onDirectRefused = (): void => void this.#refusing.add(file.device);
    const onHang = (): void => this.#retire(told);
    return new TensorLoading({ source, work, start, fetching, onProgress, onDirectRefused, onHang });
  }

  /** A filesystem that has refused direct reads once is not asked again. */
  #accessTo({ device, path }: FileVersion, tensors: readonly TensorLoad[]): FileAccess {
    const bytes = tensors.reduce(
      (sum, { parts }) => parts.reduce((part, { size_bytes }) => part + size_bytes, sum),
      0,
    );
    const direct = !this.#refusing.has(device) && this.#options.past_cache(bytes);
    // On its way to a device a byte is copied once in any case.
    const kept = this.#mappings.get(path);
    return { mapped: this.#options.mapped && (direct || !this.#upload), direct, kept };
  }

  #keepMapping(path: string, mapping: FileMapping | undefined): void {
    const before = this.#mappings.get(path);
    if (mapping === before) return;
    if (mapping) this.#mappings.set(path, mapping.hold());
    else this.#mappings.delete(path);
    before?.release();
  }

  /** Files that stayed mapped are unmapped, each once no load reads it any more. */
  unmapFiles(): void {
    for (const mapping of this.#mappings.values()) mapping.release();
    this.#mappings.clear();
  }

  /** What is still to be written of a pool in host memory takes from what files could have. */
  #cacheKeeps(load_bytes: number): boolean {
    const { bytes, resident_bytes } = this.#memory;
    return fitsHostCache(load_bytes, pageCacheRoom_bytes() - Math.max(0, bytes - resident_bytes));
  }

  /** Ends the threads. No load may be under way. */
  async close(): Promise<void> {
    this.unmapFiles();
    this.#unitLoader.free();
    this.#retire(new Set(this.#helpers));
    const ended = [...this.#retired].map(({ worker }) => {
      worker.ref();
      return new Promise((resolve) => worker.once('exit', resolve));
    });
    await Promise.all([...ended, this.#peers?.close()]);
  }

  /** Threads of a load that hangs do nothing else before it is over: others take their places. */
  #retire(helpers: ReadonlySet<Helper>): void {
    const retired = this.#helpers.filter((helper) => helpers.has(helper));
    for (const helper of retired) {
      this.#helpers.splice(this.#helpers.indexOf(helper), 1);
      this.#retired.add(helper);
      helper.worker.once('exit', () => this.#retired.delete(helper));
      // Told, not terminated: a thread that is stopped inside a foreign call takes the process with it.
      helper.port.postMessage('end');
    }
  }

  #helpersUpTo(count: number): readonly Helper[] {
    while (this.#helpers.length < count) {
      const { port1, port2 } = new MessageChannel();
      const worker = new Worker(threadFile, {
        workerData: { port: port2, folder: this.#folder },
        transferList: [port2],
      });
      worker.unref();
      port1.unref();
      this.#helpers.push({ worker, port: port1 });
    }
    return this.#helpers.slice(0, Math.max(0, count));
  }
}

function helpersBeside(beside: LoadBeside, threads: number): number {
  // At least one: where another model begins to serve meanwhile, the thread that computes helps no more.
  if (beside === 'nobody') return Math.max(1, threads - 1);
  return beside === 'idle' ? threads : Math.max(1, Math.floor(busy_share * threads));
}
