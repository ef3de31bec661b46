import { deviceMemory, type Ggml, memoryAt } from '../../../native/ggml.ts';
import { moveMemory } from '../../../native/memory-map.ts';
import type { Pointer } from '../../../native/signature.ts';
import type { HpcserveError } from '../../../spec/errors/error.ts';
import { kernelChoice } from '../../engine/kernel-choice.ts';
import type { KernelPolicy, PlannedWeight } from '../../engine/weight-plan.ts';
import type { Backend, HostCopy, MemoryInformation } from '../backend.ts';
import type { Compute, ComputeOptions } from '../compute.ts';
import type { PoolMemory } from '../pool-memory.ts';
import { CpuCompute } from './cpu-compute.ts';
import { HostPool } from './host-pool.ts';

const backends = new WeakMap<Ggml, CpuBackend>();

/** The CPU of this machine, as the library computes on it. */
export function cpuBackend(ggml: Ggml): Backend {
  let backend = backends.get(ggml);
  if (!backend) {
    backend = new CpuBackend(ggml);
    backends.set(ggml, backend);
  }
  return backend;
}

/** Cores of a node and its memory: addresses are the process's, and weights have layouts for the CPU's kernels. */
class CpuBackend implements Backend {
  readonly ggml: Ggml;
  readonly name: string;
  readonly description: string;
  readonly plain: Pointer;
  readonly addressable = true;
  readonly upload = undefined;
  readonly invariant_rows = undefined;

  constructor(ggml: Ggml) {
    this.ggml = ggml;
    this.name = ggml.ggml_backend_dev_name(ggml.cpuDevice) ?? 'CPU';
    this.description = `instruction sets: ${ggml.cpuFeatures.join(' ')}`;
    this.plain = ggml.ggml_backend_cpu_buffer_type()!;
  }

  get kernels_left_out(): readonly HpcserveError[] {
    return kernelChoice(this.ggml).left_out;
  }

  memory(): MemoryInformation {
    return deviceMemory(this.ggml, this.ggml.cpuDevice);
  }

  bufferTypeFor(weight: PlannedWeight, policy: KernelPolicy): Pointer {
    return kernelChoice(this.ggml).bufferTypeFor(weight, policy) ?? this.plain;
  }

  hybridGemm(): undefined {
    // Memory of the host is all that it has.
  }

  keepProofs(): void {
    kernelChoice(this.ggml).keep();
  }

  move(_buffer: Pointer, to: Pointer, from: Pointer, bytes: number): void {
    moveMemory(to, from, bytes);
  }

  read(_buffer: Pointer, from: Pointer, into: Uint8Array): void {
    into.set(memoryAt(from, into.length));
  }

  write(_buffer: Pointer, to: Pointer, from: Uint8Array): void {
    memoryAt(to, from.length).set(from);
  }

  readAll(copies: Iterable<HostCopy>): void {
    for (const { buffer, address, host } of copies) this.read(buffer, address, host);
  }

  writeAll(copies: Iterable<HostCopy>): void {
    for (const { buffer, address, host } of copies) this.write(buffer, address, host);
  }

  openPool(bytes: number): PoolMemory {
    return new HostPool(this.ggml, bytes);
  }

  compute(options: ComputeOptions): Compute {
    return new CpuCompute(this.ggml, options);
  }
}
