/** How graphs are computed on a device, and how the host reaches their inputs and results. */
import type { Pointer } from '../../native/signature.ts';

export interface ComputeOptions {
  /** Of the CPU; a device that computes by itself has its own. */
  threads: number;
  /** No tiled and no split attention: one path, whatever the shape of the batch. */
  fixed_paths: boolean;
  /** Of devices that compute graphs in parts; others compute every operator themselves. */
  operations?: GraphOperations | undefined;
}

/** Operators that something else than the device's own backend computes, between the parts of a graph. */
export interface GraphOperations {
  /**
   * @param ordinary computes the node as the backend does
   * @returns what is run in its place, behind all nodes before it; undefined: nothing else computes it
   */
  take(node: Pointer, ordinary: () => void): (() => void) | undefined;
}

/**
 * A graph that was placed in memory, as the host sees it. Inputs and outputs are arrays of the host: the same memory
 * where the host can address it, else copies that `run` carries over.
 */
export interface GraphPort {
  /**
   * What is written here is the tensor's content at the next `run`.
   * @param bytes the tensor's at most: it may have fewer at a run
   * @returns empty where no operation reads the tensor, so that it has no memory
   */
  input(tensor: Pointer, bytes: number): ArrayBuffer;
  /** Holds the tensor's content from one `run` to the next. */
  output(tensor: Pointer, bytes: number): ArrayBuffer;
  /** Makes all bytes of a tensor zero, once. */
  clear(tensor: Pointer, bytes: number): void;
  /** @throws HpcserveError E_ENGINE_COMPUTE */
  run(): void;
  /**
   * Runs as `run` does, with the same results, and measures its parts one by one.
   * @param ends the last node of each part, see `cutBehind`
   * @returns seconds of each part; undefined, and nothing was run: something else than the device computes some of it
   * @throws HpcserveError E_ENGINE_COMPUTE
   */
  runMeasured(ends: readonly Pointer[]): number[] | undefined;
  /** The graph is not run any more. */
  free(): void;
}

/** What one engine computes with. */
export interface Compute {
  /** @param graph placed, and so kept until the port is no longer used */
  open(graph: Pointer): GraphPort;
  free(): void;
}
