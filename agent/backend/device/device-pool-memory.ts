import type { Ggml } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';
import { SubBuffers } from '../../../native/sub-buffers.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { KvShape } from '../../engine/kv-storage.ts';
import type { KvRegions, PoolCache } from '../../memory/pool-cache.ts';
import { type PoolLayout, type PoolMemory, type PoolPart, type PoolSpan, placeIn } from '../pool-memory.ts';
import type { DeviceBytes } from './device-bytes.ts';
import { RegionKv } from './region-kv.ts';
import { TableKv } from './table-kv.ts';

/** Of offsets: a multiple of what every backend of ggml asks for (Vulkan at most 256, CUDA 128). */
const pool_alignment_bytes = 256;

interface DeviceMemoryParts {
  ggml: Ggml;
  /** ggml's buffer type of the device. */
  plain: Pointer;
  /** Largest buffer in which a tensor may lie that is as large as the buffer. */
  span_bytes_max: number;
  bytes: DeviceBytes;
}

/**
 * The pool of a device with memory of its own: as few buffers as the device allows, one after another in the offsets of
 * the pool. All of it is taken at once, and everything lies in it as in files.
 */
export class DevicePoolMemory implements PoolMemory {
  readonly bytes: number;
  readonly alignment_bytes = pool_alignment_bytes;
  readonly layouts: readonly PoolLayout[];
  readonly gaps: { offset: number; bytes: number }[] = [];
  readonly #parts: DeviceMemoryParts;
  readonly #subBuffers: SubBuffers;

  /** @throws HpcserveError E_NATIVE_MEMORY */
  constructor(parts: DeviceMemoryParts, bytes: number) {
    const { ggml, plain } = parts;
    this.#parts = parts;
    this.#subBuffers = new SubBuffers(ggml);
    const spans: PoolSpan[] = [];
    try {
      let offset = 0;
      for (let left = aligned(bytes); left > 0; ) {
        if (offset > 0) {
          this.gaps.push({ offset, bytes: pool_alignment_bytes });
          offset += pool_alignment_bytes;
        }
        const size = Math.min(
          left,
          Math.floor(parts.span_bytes_max / pool_alignment_bytes) * pool_alignment_bytes,
        );
        const buffer = ggml.ggml_backend_buft_alloc_buffer(plain, size);
        if (!buffer) throw refused(ggml, plain, bytes);
        spans.push({
          begin: offset,
          end: offset + size,
          buffer,
          base: ggml.ggml_backend_buffer_get_base(buffer)!,
        });
        offset += size;
        left -= size;
      }
      this.bytes = offset;
    } catch (error) {
      for (const { buffer } of spans) ggml.ggml_backend_buffer_free(buffer);
      this.#subBuffers.free();
      throw error;
    }
    this.layouts = [{ name: ggml.ggml_backend_buft_name(plain) ?? 'unnamed', bufferType: plain, spans }];
  }

  get plain(): PoolLayout {
    return this.layouts[0]!;
  }

  get resident_bytes(): number {
    return this.bytes;
  }

  layoutOf(bufferType: Pointer): PoolLayout {
    if (bufferType !== this.plain.bufferType) throw new Error('the pool has no layout of that buffer type');
    return this.plain;
  }

  move(to_offset: number, from_offset: number, bytes: number): void {
    const { spans } = this.plain;
    this.#parts.bytes.move(placeIn(spans, to_offset), placeIn(spans, from_offset), bytes);
  }

  read(offset: number, into: Uint8Array): void {
    this.#parts.bytes.read(placeIn(this.plain.spans, offset), into);
  }

  write(offset: number, from: Uint8Array): void {
    this.#parts.bytes.write(placeIn(this.plain.spans, offset), from, from.length);
  }

  zero(offset: number, bytes: number): void {
    this.#parts.bytes.zero(placeIn(this.plain.spans, offset), bytes);
  }

  populate(): void {
    // A buffer of a device has its memory from the start.
  }

  part(offset: number, bytes: number): PoolPart {
    const { buffer: whole, address } = placeIn(this.plain.spans, offset);
    const buffer = this.#subBuffers.open(whole, address, bytes);
    return { buffer, end: () => this.#subBuffers.close(buffer) };
  }

  openKv(regions: KvRegions, model: string, shape: KvShape): PoolCache {
    const Cache = shape.at_once ? RegionKv : TableKv;
    return new Cache(this.plain.spans, pool_alignment_bytes, regions, model, shape);
  }

  free(): void {
    for (const { buffer } of this.plain.spans) this.#parts.ggml.ggml_backend_buffer_free(buffer);
    this.#subBuffers.free();
  }
}

function aligned(bytes: number): number {
  return Math.ceil(bytes / pool_alignment_bytes) * pool_alignment_bytes;
}

function refused(ggml: Ggml, bufferType: Pointer, bytes: number): HpcserveError {
  return new HpcserveError('E_NATIVE_MEMORY', {
    what: `no ${(bytes / 2 ** 30).toFixed(2)} GiB of device memory for a pool`,
    because: `the device refused a buffer of the type ${ggml.ggml_backend_buft_name(bufferType)}`,
    try: 'make the pool smaller, or look whether somebody else has memory of the device',
  });
}
