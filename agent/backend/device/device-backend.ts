import { packageRoot } from '../../../host/package-root.ts';
import { loadedLibraries } from '../../../host/process-memory.ts';
import { type HybridGemm, loadHybridGemm } from '../../../native/cuda/hybrid-gemm.ts';
import { deviceMemory, type Ggml, type GgmlDevice, GgmlType, ggmlDevices } from '../../../native/ggml.ts';
import { ProofCache } from '../../../native/proof-cache.ts';
import type { Pointer } from '../../../native/signature.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { Backend, DeviceUpload, HostCopy, MemoryInformation } from '../backend.ts';
import type { Compute, ComputeOptions } from '../compute.ts';
import type { PoolMemory } from '../pool-memory.ts';
import { DeviceBytes } from './device-bytes.ts';
import { DeviceCompute } from './device-compute.ts';
import { DevicePoolMemory } from './device-pool-memory.ts';
import { HostCopies } from './host-copies.ts';
import { OperatorProofs } from './operator-proof.ts';

/**
 * A device of the libraries that are loaded.
 * @param name as ggml gives it: `Vulkan0`, `CUDA0`
 * @throws HpcserveError E_NATIVE_LIBRARY: the libraries know no such device
 */
export function deviceBackend(ggml: Ggml, name: string): Backend {
  const devices = ggmlDevices(ggml);
  const device = devices.find((candidate) => candidate.name === name);
  if (device && device.pointer !== ggml.cpuDevice) return new DeviceBackend(ggml, device);
  throw new HpcserveError('E_NATIVE_LIBRARY', {
    what: `there is no device ${name}`,
    because: `the libraries in ${ggml.libraries.folder} have ${devices.map((known) => known.name).join(', ')}`,
  });
}

/**
 * Beyond eight, up to which GPUs have kernels of their own for each number of rows, and a whole number of tiles.
 * Lower: other kernels serve some batches; higher: a row that decodes alone is padded with more that nobody reads.
 */
const fixed_rows = 32;

function gib(bytes: number): string {
  return `${(bytes / 2 ** 30).toFixed(2)} GiB`;
}

/** A device with memory of its own, through ggml's generic functions: Vulkan, CUDA, HIP. For one thread. */
export class DeviceBackend implements Backend {
  readonly ggml: Ggml;
  readonly name: string;
  readonly description: string;
  readonly plain: Pointer;
  readonly addressable = false;
  readonly invariant_rows = fixed_rows;
  readonly upload: DeviceUpload;
  readonly #onHost = new Map<string, HpcserveError>();
  readonly #device: Pointer;
  readonly #bytes: DeviceBytes;
  #proofs: OperatorProofs | undefined;
  #many: HostCopies | undefined;

  constructor(ggml: Ggml, { name, description, pointer }: GgmlDevice) {
    this.ggml = ggml;
    this.name = name;
    this.description = description;
    this.#device = pointer;
    this.plain = ggml.ggml_backend_dev_buffer_type(pointer)!;
    const host_buffer_type = ggml.ggml_backend_dev_host_buffer_type(pointer) ?? undefined;
    this.upload = { device: pointer, host_buffer_type };
    this.#bytes = new DeviceBytes(ggml, this.plain);
  }

  /** Operators that it has no kernel for, or a wrong one. */
  get kernels_left_out(): readonly HpcserveError[] {
    return [...this.#onHost.values()];
  }

  memory(): MemoryInformation {
    return deviceMemory(this.ggml, this.#device);
  }

  bufferTypeFor(): Pointer {
    return this.plain;
  }

  hybridGemm(): HybridGemm | undefined {
    return this.name.startsWith('CUDA') ? loadHybridGemm() : undefined;
  }

  keepProofs(): void {
    // Operators are proved with the graphs that they are of, and kept then.
  }

  move(buffer: Pointer, to: Pointer, from: Pointer, bytes: number): void {
    this.#bytes.move({ buffer, address: to }, { buffer, address: from }, bytes);
  }

  read(buffer: Pointer, from: Pointer, into: Uint8Array): void {
    this.#bytes.read({ buffer, address: from }, into);
  }

  write(buffer: Pointer, to: Pointer, from: Uint8Array): void {
    this.#bytes.write({ buffer, address: to }, from, from.length);
  }

  readAll(copies: Iterable<HostCopy>): void {
    this.#manyCopies().readAll(copies);
  }

  writeAll(copies: Iterable<HostCopy>): void {
    this.#manyCopies().writeAll(copies);
  }

  openPool(bytes: number): PoolMemory {
    const { ggml, plain } = this;
    const { free_bytes, total_bytes } = this.memory();
    // Some drivers promise any amount, and fail when it is written.
    if (bytes > free_bytes)
      throw new HpcserveError('E_NATIVE_MEMORY', {
        what: `no ${gib(bytes)} of memory for a pool on ${this.description}`,
        because: `${gib(free_bytes)} of its ${gib(total_bytes)} are free`,
        try: 'make the pool smaller (sharing.pool_gb), or look who else has memory of the device',
      });
    const span_bytes_max = this.#spanMax_bytes();
    return new DevicePoolMemory({ ggml, plain, span_bytes_max, bytes: this.#bytes }, bytes);
  }

  compute({ operations }: ComputeOptions): Compute {
    const proofs = this.#operatorProofs();
    const onHost = (operator: string, wrong: string | undefined): void => this.#noteOnHost(operator, wrong);
    return new DeviceCompute(this.ggml, this.#device, proofs, onHost, operations);
  }

  #manyCopies(): HostCopies {
    this.#many ??= new HostCopies(this.ggml, this.upload);
    return this.#many;
  }

  /** What was right is right for these libraries with this driver. */
  #operatorProofs(): OperatorProofs {
    const { ggml, name, description } = this;
    // Our own are loaded when somebody needs them.
    const drivers = loadedLibraries().filter(
      (library) => !library.startsWith(packageRoot) || library.includes('/libggml-'),
    );
    const facts = [name, description, ...drivers];
    this.#proofs ??= new OperatorProofs(ggml, this.#device, ProofCache.open(ggml, facts));
    return this.#proofs;
  }

  #noteOnHost(operator: string, wrong: string | undefined): void {
    if (this.#onHost.has(operator)) return;
    const lacks = wrong === undefined ? 'has no kernel for it' : 'computes it wrongly';
    const error = new HpcserveError('E_NATIVE_KERNEL', {
      what: `${operator} is computed on the CPU: ${this.description} ${lacks}`,
      because:
        wrong === undefined
          ? `ggml's backend ${this.name} refuses it with these types and sizes`
          : `tried with made-up numbers beside the CPU: ${wrong}`,
      try:
        wrong === undefined
          ? 'nothing, where that is fast enough; else another quantization of the model, or a wrapped engine'
          : 'another version of the driver; answers are right meanwhile, and slower',
    });
    this.#onHost.set(operator, error);
  }

  /**
   * A buffer of a pool is seen as one matrix of KV rows, and kernels have a largest matrix (Vulkan:
   * maxStorageBufferRange). No function tells it, but the backend says whether it would compute with one.
   */
  #spanMax_bytes(): number {
    const { ggml } = this;
    const largest = Number(ggml.ggml_backend_buft_get_max_size(this.plain));
    const width = 256;
    const context = ggml.ggml_init({
      mem_size: 8 * Number(ggml.ggml_tensor_overhead()),
      mem_buffer: null,
      no_alloc: true,
    })!;
    try {
      for (let bytes = Math.min(largest, this.memory().total_bytes); bytes > 2 ** 20; bytes /= 2) {
        ggml.ggml_reset(context);
        const matrix = ggml.ggml_new_tensor_2d(
          context,
          GgmlType.F16,
          width,
          Math.floor(bytes / (2 * width)),
        )!;
        const rows = ggml.ggml_new_tensor_2d(context, GgmlType.F32, width, 1);
        const ids = ggml.ggml_new_tensor_1d(context, GgmlType.I64, 1);
        const written = ggml.ggml_set_rows(context, matrix, rows, ids);
        if (ggml.ggml_backend_dev_supports_op(this.#device, written)) return bytes;
      }
    } finally {
      ggml.ggml_free(context);
    }
    throw new HpcserveError('E_NATIVE_LIBRARY', {
      what: `${this.description} cannot hold a KV cache`,
      because: `its backend ${this.name} does not write rows of 16-bit numbers`,
    });
  }
}
