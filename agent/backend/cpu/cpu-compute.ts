import { type Ggml, ggmlStatusSuccess, memoryAt } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { Compute, ComputeOptions, GraphPort } from '../compute.ts';
import { cutBehind, graphNodes, PartGraph, timed_s } from '../graph-parts.ts';

/** sizeof(struct ggml_threadpool_params). */
const threadpoolParamsBytes = 528;

/**
 * Graphs on the CPU. Engines of one worker share a thread pool: they compute in turns, and pools that spin
 * side by side would take the cores from one another.
 */
export class CpuCompute implements Compute {
  readonly #ggml: Ggml;
  readonly #backend: Pointer;
  readonly #threadpool: SharedThreadpool;

  constructor(ggml: Ggml, options: ComputeOptions) {
    this.#ggml = ggml;
    const backend = ggml.ggml_backend_dev_init(ggml.cpuDevice, null);
    if (!backend) throw new HpcserveError('E_NATIVE_MEMORY', { what: 'the CPU backend did not start' });
    this.#backend = backend;
    this.#threadpool = takeThreadpool(ggml, options.threads);
    ggml.cpu.ggml_backend_set_n_threads(backend, options.threads);
    ggml.cpu.ggml_backend_cpu_set_threadpool(backend, this.#threadpool.pool);
    ggml.cpu.ggml_backend_cpu_set_use_ref(backend, options.fixed_paths);
  }

  /** Inputs and results are where the graph has them. */
  open(graph: Pointer): GraphPort {
    const memory = (tensor: Pointer, bytes: number): ArrayBuffer => {
      const address = this.#ggml.ggml_get_data(tensor);
      return address ? (memoryAt(address, bytes).buffer as ArrayBuffer) : new ArrayBuffer(0);
    };
    return {
      input: memory,
      output: memory,
      clear: (tensor, bytes) => new Uint8Array(memory(tensor, bytes)).fill(0),
      run: () => this.#run(graph),
      runMeasured: (ends) => this.#runMeasured(graph, ends),
      free: () => undefined,
    };
  }

  #run(graph: Pointer): void {
    const status = this.#ggml.ggml_backend_graph_compute(this.#backend, graph);
    if (status !== ggmlStatusSuccess)
      throw new HpcserveError('E_ENGINE_COMPUTE', { what: `ggml ended a graph with status ${status}` });
  }

  /** Kernels of the CPU compute the same bits, joined with their neighbours or not (`stage.test.ts`). */
  #runMeasured(graph: Pointer, ends: readonly Pointer[]): number[] {
    const parts = cutBehind(graphNodes(this.#ggml, graph), ends).map(
      (nodes) => new PartGraph(this.#ggml, nodes),
    );
    try {
      return timed_s(parts.map((part) => () => this.#run(part.graph)));
    } finally {
      for (const part of parts) part.free();
    }
  }

  free(): void {
    this.#ggml.ggml_backend_free(this.#backend);
    giveThreadpoolBack(this.#ggml, this.#threadpool);
  }
}

interface SharedThreadpool {
  pool: Pointer;
  threads: number;
  users: number;
}

/** Pools of this JavaScript thread, by their number of threads. */
const pools = new Map<number, SharedThreadpool>();

/**
 * Threads that wait for work spin for some tenths of a second (poll level 50, ggml's default) and then
 * sleep: an idle worker costs nothing, and consecutive iterations pay no wake-up.
 */
function takeThreadpool(ggml: Ggml, threads: number): SharedThreadpool {
  let shared = pools.get(threads);
  if (!shared) {
    const params = new Uint8Array(threadpoolParamsBytes);
    ggml.ggml_threadpool_params_init(params, threads);
    const pool = ggml.cpu.ggml_threadpool_new(params);
    if (!pool) throw new HpcserveError('E_NATIVE_MEMORY', { what: `no thread pool of ${threads} threads` });
    shared = { pool, threads, users: 0 };
    pools.set(threads, shared);
  }
  shared.users++;
  return shared;
}

function giveThreadpoolBack(ggml: Ggml, shared: SharedThreadpool): void {
  shared.users--;
  if (shared.users > 0) return;
  pools.delete(shared.threads);
  ggml.cpu.ggml_threadpool_free(shared.pool);
}
