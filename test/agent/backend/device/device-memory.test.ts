/** Memory of a device: bytes come back as they went in, wherever they were moved, and parts of buffers are theirs. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { deviceBackend } from '../../../../agent/backend/device/device-backend.ts';
import { DeviceBytes } from '../../../../agent/backend/device/device-bytes.ts';
import { DevicePoolMemory } from '../../../../agent/backend/device/device-pool-memory.ts';
import { DevicePool } from '../../../../agent/memory/device-pool.ts';
import { GgmlType, ggmlDevices } from '../../../../native/ggml.ts';
import { HpcserveError } from '../../../../spec/errors/error.ts';
import { isThere, lacking, vulkan } from './support.ts';

const mib = 2 ** 20;

function numbered(bytes: number): Uint8Array {
  return Uint8Array.from({ length: bytes }, (_, index) => (index * 2654435761) >>> 13);
}

describe.skipIf(!isThere)(`the memory of a Vulkan device${lacking}`, () => {
  test('is told, cannot be addressed, and has page-locked memory of the host beside it', () => {
    const { ggml, backend } = vulkan();
    expect(ggmlDevices(ggml).map(({ name }) => name)).toContain('Vulkan0');
    expect(backend.addressable).toBe(false);
    expect(backend.memory().total_bytes).toBeGreaterThan(64 * mib);
    expect(ggml.ggml_backend_buft_is_host(backend.upload!.host_buffer_type!)).toBe(true);
    expect(ggml.ggml_backend_buft_is_host(backend.plain)).toBe(false);
    expect(() => deviceBackend(ggml, 'Vulkan7')).toThrow(HpcserveError);
    expect(() => deviceBackend(ggml, 'CPU')).toThrow('there is no device CPU');
  });

  test('moves bytes as memmove does, however far and however the ranges overlap', () => {
    const { backend } = vulkan();
    const size = 10 * mib;
    const memory = backend.openPool(size);
    const expected = numbered(size);
    memory.write(0, expected);
    const far = fc.integer({ min: 0, max: size / 256 - 1 }).map((at) => at * 256);
    const near = fc.tuple(far, fc.integer({ min: -8, max: 8 })).map(([from, by]) => [from, from + by * 256]);
    const ranges = fc.oneof(fc.tuple(far, far), near);
    fc.assert(
      fc.property(ranges, fc.integer({ min: 1, max: size }), ([from, to], wanted) => {
        if (to! < 0 || to! >= size) return;
        const bytes = Math.ceil(Math.min(wanted, size - from!, size - to!) / 4) * 4;
        memory.move(to!, from!, bytes);
        expected.copyWithin(to!, from!, from! + bytes);
        const now = new Uint8Array(size);
        memory.read(0, now);
        expect(Buffer.compare(now, expected)).toBe(0);
      }),
      { numRuns: 20, seed: 7 },
    );
    memory.free();
  });

  test('may be several buffers: no region lies in two, and bytes move from one to the other', async () => {
    const { ggml, backend } = vulkan();
    const bytes = new DeviceBytes(ggml, backend.plain);
    const memory = new DevicePoolMemory({ ggml, plain: backend.plain, span_bytes_max: mib, bytes }, 3 * mib);
    expect(memory.plain.spans).toHaveLength(3);
    expect(memory.bytes).toBe(3 * mib + 2 * 256);
    const pool = new DevicePool(
      { ...backendOf(backend), openPool: () => memory },
      { pool_bytes: 3 * mib, threads: 1 },
    );
    expect(pool.report()).toMatchObject({ free_bytes: 3 * mib, largest_free_bytes: mib });
    pool.verify();
    memory.write(5 * 256, numbered(512 * 1024));
    memory.move(2 * mib + 1024, 5 * 256, 512 * 1024);
    const back = new Uint8Array(512 * 1024);
    memory.read(2 * mib + 1024, back);
    expect(Buffer.compare(back, numbered(512 * 1024))).toBe(0);
    await pool.close();
    bytes.free();
  });

  test('can be taken in parts: results of a graph lie where the pool says', () => {
    const { ggml, backend } = vulkan();
    const memory = backend.openPool(mib);
    memory.write(0, new Uint8Array(mib).fill(9));
    const part = memory.part(64 * 1024, 4096)!;
    const context = ggml.ggml_init({ mem_size: 4096, mem_buffer: null, no_alloc: true })!;
    const tensor = ggml.ggml_new_tensor_1d(context, GgmlType.I8, 4096)!;
    ggml.ggml_backend_tensor_alloc(part.buffer, tensor, ggml.ggml_backend_buffer_get_base(part.buffer)!);
    ggml.ggml_backend_tensor_set(tensor, numbered(4096), 0, 4096);
    ggml.ggml_backend_buffer_free(part.buffer);
    part.end();
    const whole = new Uint8Array(mib);
    memory.read(0, whole);
    expect(Buffer.compare(whole.subarray(65_536, 65_536 + 4096), numbered(4096))).toBe(0);
    expect(whole[65_535]).toBe(9);
    expect(whole[65_536 + 4096]).toBe(9);
    ggml.ggml_free(context);
    memory.free();
  });

  test('that is not there is refused, and nothing of it stays taken', () => {
    const { backend } = vulkan();
    expect(() => backend.openPool(2 ** 45)).toThrow(/of memory for a pool on llvmpipe/);
    backend.openPool(mib).free();
  });

  test('of which a stranger has the most leaves a smaller pool, and says so; of which hardly any is left, none', async () => {
    const { backend } = vulkan();
    const { total_bytes } = backend.memory();
    // Of this driver nobody can take memory so that it says so: here it says it.
    const beside = (free_bytes: number): typeof backend => ({
      ...backendOf(backend),
      memory: () => ({ free_bytes, total_bytes }),
      openPool: (bytes) => backend.openPool(bytes > free_bytes ? 2 ** 45 : bytes),
    });
    const options = { pool_bytes: 64 * mib, threads: 1 };
    const alone = DevicePool.largest(beside(100 * mib), options);
    expect([alone.memory.bytes, alone.cut]).toEqual([64 * mib, undefined]);
    await alone.close();
    const cut = DevicePool.largest(beside(40 * mib), options);
    expect(cut.memory.bytes).toBe(36 * mib);
    expect(cut.cut).toMatchObject({ code: 'E_NATIVE_MEMORY' });
    expect(cut.cut!.toText()).toMatch(
      /llvmpipe.* has 0\.04 GiB in place of 0\.06 GiB[\s\S]*others have memory of the device/,
    );
    await cut.close();
    // All of it would leave nothing for what the backend takes itself.
    const tight = DevicePool.largest(beside(66 * mib), options);
    expect(tight.memory.bytes).toBe(Math.ceil(Math.floor(0.9 * 66 * mib) / 256) * 256);
    expect(tight.cut).toMatchObject({ code: 'E_NATIVE_MEMORY' });
    await tight.close();
    expect(() => DevicePool.largest(beside(mib), options)).toThrow(/of memory for a pool on llvmpipe/);
  });
});

/** Its members, those of its class included, so that one of them can be another. */
function backendOf(backend: ReturnType<typeof vulkan>['backend']): typeof backend {
  return {
    ggml: backend.ggml,
    name: backend.name,
    description: backend.description,
    plain: backend.plain,
    addressable: backend.addressable,
    upload: backend.upload,
    readAll: (copies) => backend.readAll(copies),
    writeAll: (copies) => backend.writeAll(copies),
    invariant_rows: backend.invariant_rows,
    kernels_left_out: [],
    memory: () => backend.memory(),
    bufferTypeFor: (weight, policy) => backend.bufferTypeFor(weight, policy),
    hybridGemm: () => backend.hybridGemm(),
    keepProofs: () => backend.keepProofs(),
    move: (...args) => backend.move(...args),
    read: (...args) => backend.read(...args),
    write: (...args) => backend.write(...args),
    openPool: (bytes) => backend.openPool(bytes),
    compute: (options) => backend.compute(options),
  };
}
