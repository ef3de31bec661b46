/** Copies that a device does by itself: the same bytes in the same places, whatever is under way beside them. */
import { createHash } from 'node:crypto';
import { closeSync, mkdtempSync, openSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, describe, expect, test } from 'vitest';
import type { HostCopy } from '../../../../agent/backend/backend.ts';
import { DeviceCopies } from '../../../../agent/backend/device/device-copies.ts';
import type { PoolMemory } from '../../../../agent/backend/pool-memory.ts';
import { placeIn } from '../../../../agent/backend/pool-memory.ts';
import { ContentHashCache, rangeOfKey } from '../../../../agent/memory/content-hashes.ts';
import { DevicePool } from '../../../../agent/memory/device-pool.ts';
import { fileVersion } from '../../../../agent/memory/file-version.ts';
import { learnContents } from '../../../../agent/memory/learn-contents.ts';
import { LoadCounters } from '../../../../agent/memory/load/load-work.ts';
import { stagingMemory } from '../../../../agent/memory/load/staging-memory.ts';
import { UnitLoader } from '../../../../agent/memory/load/unit-loader.ts';
import { deviceCapabilities, memoryAt } from '../../../../native/ggml.ts';
import { model } from '../../engine/support.ts';
import { openIn } from '../../memory/support.ts';
import { isThere, lacking, vulkan } from './support.ts';

const mib = 2 ** 20;
const folder = mkdtempSync(join(tmpdir(), 'hpcserve-copies-'));
afterAll(() => rmSync(folder, { recursive: true }));

function numbered(bytes: number, seed = 1): Uint8Array {
  return Uint8Array.from({ length: bytes }, (_, index) => ((index + seed) * 2654435761) >>> 13);
}

function copyOf(memory: PoolMemory, offset: number, host: Uint8Array): HostCopy {
  return { ...placeIn(memory.plain.spans, offset), host };
}

describe.skipIf(!isThere)(`copies between a host and a Vulkan device${lacking}`, () => {
  test('go on beside the host, and are told apart by fences', () => {
    const { ggml, backend } = vulkan();
    const { device, host_buffer_type } = backend.upload!;
    expect(deviceCapabilities(ggml, device)).toMatchObject({ async: true, host_buffer: true });
    expect(deviceCapabilities(ggml, ggml.cpuDevice).async).toBe(false);
    const memory = backend.openPool(8 * mib);
    const copies = new DeviceCopies(ggml, device);
    expect(copies.overlap).toBe(true);
    const staging = stagingMemory(ggml, host_buffer_type, 2 * mib);
    const halves = [0, 1].map((index) => ({
      address: staging.address + BigInt(index * mib),
      fence: copies.fence(),
    }));
    // Each half is filled anew as soon as its fence says so.
    for (let piece = 0; piece < 8; piece++) {
      const { address, fence } = halves[piece % 2]!;
      fence.wait();
      memoryAt(address, mib).set(numbered(mib, piece));
      copies.write(placeIn(memory.plain.spans, piece * mib), address, mib);
      fence.set();
    }
    copies.finish();
    const found = new Uint8Array(mib);
    for (let piece = 0; piece < 8; piece++) {
      memory.read(piece * mib, found);
      expect(Buffer.compare(found, numbered(mib, piece)), `piece ${piece}`).toBe(0);
    }
    copies.read(placeIn(memory.plain.spans, 3 * mib + 512), halves[1]!.address, 4096);
    halves[1]!.fence.set();
    halves[1]!.fence.wait();
    expect(Buffer.compare(memoryAt(halves[1]!.address, 4096), numbered(mib, 3).subarray(512, 4608))).toBe(0);
    for (const { fence } of halves) fence.free();
    copies.free();
    staging.free();
    memory.free();
  });

  test('bring many arrays there and back, short ones and some that are longer than what they go through', () => {
    const { backend } = vulkan();
    const memory = backend.openPool(24 * mib);
    const lengths = fc.array(
      fc.oneof(fc.integer({ min: 1, max: 5000 }), fc.integer({ min: 1, max: 5 * mib })),
      {
        minLength: 1,
        maxLength: 4,
      },
    );
    fc.assert(
      fc.property(fc.array(lengths, { minLength: 1, maxLength: 1 }), ([sizes]) => {
        let offset = 0;
        const places = sizes!.map((bytes, index) => {
          const place = { offset, bytes, sent: numbered(bytes, index + bytes) };
          offset = Math.ceil((offset + bytes) / 256) * 256;
          return place;
        });
        backend.writeAll(places.map((place) => copyOf(memory, place.offset, place.sent)));
        const back = places.map(({ bytes }) => new Uint8Array(bytes));
        backend.readAll(places.map((place, index) => copyOf(memory, place.offset, back[index]!)));
        places.forEach(({ sent }, index) => {
          expect(Buffer.compare(back[index]!, sent)).toBe(0);
        });
      }),
      { numRuns: 15, seed: 3 },
    );
    memory.free();
  });

  test('of a unit go on while the next ones are read, as far as its thread has memory for them', () => {
    const { ggml, backend } = vulkan();
    const units_count = 8;
    const path = join(folder, 'units');
    writeFileSync(path, numbered(units_count * mib));
    const descriptor = openSync(path, 'r');
    const memory = backend.openPool(units_count * mib);
    /** In the order in which the thread asks for them. */
    const asked: ('upload' | 'wait')[] = [];
    const loader = new UnitLoader({
      ...ggml,
      ggml_backend_tensor_set_async: (...own) => {
        asked.push('upload');
        ggml.ggml_backend_tensor_set_async(...own);
      },
      ggml_backend_event_synchronize: (...own) => {
        asked.push('wait');
        ggml.ggml_backend_event_synchronize(...own);
      },
      ggml_backend_synchronize: (...own) => {
        asked.push('wait');
        ggml.ggml_backend_synchronize(...own);
      },
    });
    loader.run({
      descriptor,
      path,
      size_bytes: units_count * mib,
      layouts: [memory.plain.spans],
      upload: backend.upload,
      units: Array.from({ length: units_count }, (_, index) => [
        { kind: 'plain', file_offset: index * mib, pool_offset: index * mib, bytes: mib },
      ]),
      counters: new LoadCounters().shared,
    });
    loader.free();
    closeSync(descriptor);
    // The memory of four units: the fifth is read where the first one's upload is over, and so on.
    const during = asked.slice(0, asked.lastIndexOf('upload') + 1).join(' ');
    expect(during).toBe(`${'upload '.repeat(4)}${'wait upload '.repeat(4).trim()}`);
    const found = new Uint8Array(units_count * mib);
    memory.read(0, found);
    expect(Buffer.compare(found, numbered(units_count * mib))).toBe(0);
    memory.free();
  });

  test.each([true, false])('are what loads go by; past the page cache: %s', async (past_cache) => {
    const { backend } = vulkan();
    const path = await model('small-llama', 'F16');
    const content_hashes = new ContentHashCache(mkdtempSync(join(folder, 'tensors-')));
    await learnContents(content_hashes, path);
    const pool = new DevicePool(backend, {
      pool_bytes: 96 * mib,
      threads: 3,
      past_cache: () => past_cache,
      unit_bytes: 512 * 1024,
      content_hashes,
    });
    const { engine, load } = openIn(pool, path);
    const legs = new Map(load.legs.map(({ leg, bytes }) => [leg, bytes]));
    expect(legs.get('upload')).toBe(load.missing_bytes);
    expect((legs.get('disk') ?? 0) + (legs.get('cache') ?? 0)).toBeGreaterThanOrEqual(load.missing_bytes);
    const file = fileVersion(path, statSync(path, { bigint: true }));
    for (const [key, content] of content_hashes.read(file)!) {
      const { size_bytes: bytes } = rangeOfKey(key);
      const found = pool.readContent({ content, offset: 0, bytes })!;
      expect(createHash('sha256').update(found).digest('base64url')).toBe(content);
    }
    engine.close();
    pool.verify();
    await pool.close();
  });
});
