/**
 * What differs from device to device, behind one interface: everything above it asks a `Backend`, and never which kind
 * of device it is. There are two implementations, and docs/memory.md says what each does:
 *
 *   engine/ (graphs, batches, KV blocks)   memory/ (pool, reuse store, loads)
 *                      └──────────────┬──────────────┘
 *                                  Backend
 *              ┌──────────────────────┴──────────────────────┐
 *         cpu/ CpuBackend                         device/ DeviceBackend
 *   memory file, special layouts,           any other backend of ggml (Vulkan, CUDA, HIP),
 *   page table as block table               through its generic functions alone
 */
import type { HybridGemm } from '../../native/cuda/hybrid-gemm.ts';
import type { Ggml } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';
import type { HpcserveError } from '../../spec/errors/error.ts';
import type { KernelPolicy, PlannedWeight } from '../engine/weight-plan.ts';
import type { Compute, ComputeOptions } from './compute.ts';
import type { PoolMemory } from './pool-memory.ts';

export interface MemoryInformation {
  free_bytes: number;
  total_bytes: number;
}

/** Plain data, for threads that have no backend of their own: see `DeviceCopies`. */
export interface DeviceUpload {
  /** ggml_backend_dev_t. */
  device: Pointer;
  /**
   * Memory of the host that the device copies from without a detour (page-locked); undefined: any memory is as good.
   */
  host_buffer_type: Pointer | undefined;
}

/** Bytes of a buffer of the device, and where they come from or go to. */
export interface HostCopy {
  buffer: Pointer;
  address: Pointer;
  host: Uint8Array;
}

export interface Backend {
  readonly ggml: Ggml;
  /** ggml's name of the device: `CPU`, `Vulkan0`. */
  readonly name: string;
  /** What computes, for messages: instruction sets of a CPU, the name of a GPU. */
  readonly description: string;
  /** ggml's buffer type of memory that anything may lie in, as it is in files. */
  readonly plain: Pointer;
  /** Whether the host reads and writes plain memory at its addresses. */
  readonly addressable: boolean;
  /** How threads bring bytes to it; absent: they write them to its memory. */
  readonly upload: DeviceUpload | undefined;
  /**
   * Where `batch_invariant` needs batches cut for it: products of exactly so many rows, and attention one row at a
   * time, give a row the same bits in every batch. Undefined: kernels themselves do, or rows are padded.
   */
  readonly invariant_rows: number | undefined;
  /** Kernels that are wrong or missing on this device, in whose place others compute: one E_NATIVE_KERNEL each. */
  readonly kernels_left_out: readonly HpcserveError[];

  /** Of the device, as its driver tells it: others may take from it at any time. */
  memory(): MemoryInformation;
  /**
   * The buffer type that a weight lies in: a special one where its kernels are faster and right, else `plain`.
   * @param policy whose kernels, on devices for which there are several
   * @throws HpcserveError E_NATIVE_KERNEL: no kernel for it is right
   */
  bufferTypeFor(weight: PlannedWeight, policy: KernelPolicy): Pointer;
  /** Our own products with weights in memory of the host, where the build has some for this kind of device. */
  hybridGemm(): HybridGemm | undefined;
  /** What was found out about kernels is kept for other processes. */
  keepProofs(): void;

  /** Copies bytes of one buffer to another place in it. The ranges may overlap. */
  move(buffer: Pointer, to: Pointer, from: Pointer, bytes: number): void;
  /** Copies bytes of a buffer to the host. */
  read(buffer: Pointer, from: Pointer, into: Uint8Array): void;
  write(buffer: Pointer, to: Pointer, from: Uint8Array): void;
  /** Many at once: on their way together where the device copies by itself. */
  readAll(copies: Iterable<HostCopy>): void;
  writeAll(copies: Iterable<HostCopy>): void;

  /**
   * @param bytes rounded up to what the device gives
   * @throws HpcserveError E_NATIVE_MEMORY
   */
  openPool(bytes: number): PoolMemory;
  /** @throws HpcserveError E_NATIVE_MEMORY */
  compute(options: ComputeOptions): Compute;
}
