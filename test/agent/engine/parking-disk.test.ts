/** What a disk for parked KV is taken for: by whole measurements, for as long as they are new. */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { ParkingDisk, ParkingFailure } from '../../../agent/engine/parking-disk.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-parking-disk-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

test('one byte, however long it takes, does not make it slow', () => {
  const disk = new ParkingDisk(folder, 1e9);
  const before = disk.bytes_per_s;
  const file = disk.create(1);
  file.write(Uint8Array.of(1));
  file.close();
  // A call to the system takes a microsecond at least: by it alone, the disk would give less than a megabyte a second.
  expect(disk.bytes_per_s).toBeGreaterThan(0.8 * before);
});

test('what is larger than half of what is free is not begun, and leaves nothing', () => {
  let now_ms = 0;
  const disk = new ParkingDisk(folder, 1e9, () => now_ms);
  expect(() => disk.create(2 ** 60)).toThrow(ParkingFailure);
  expect(disk.usable).toBe(false);
  now_ms += 60_000;
  expect(disk.usable).toBe(true);
  expect(readdirSync(folder)).toEqual([]);
});
