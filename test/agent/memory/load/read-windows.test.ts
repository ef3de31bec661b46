import { describe, expect, test } from 'vitest';
import type { Unit } from '../../../../agent/memory/load/pieces.ts';
import {
  placeInWindows,
  readWindows,
  windowMemory_bytes,
} from '../../../../agent/memory/load/read-windows.ts';

function plain(file_offset: number, bytes: number): Unit[number] {
  return { kind: 'plain', file_offset, pool_offset: 0, bytes };
}

describe('reads of a unit', () => {
  test('are as many as its ranges where these lie far apart, and one where they are close', () => {
    const far = readWindows([plain(1_000_000, 100), plain(32, 100)], 1);
    expect(far).toEqual([
      { offset_bytes: 32, size_bytes: 100, at: 0 },
      { offset_bytes: 1_000_000, size_bytes: 100, at: 128 },
    ]);
    expect(windowMemory_bytes(far)).toBe(228);
    // What lies between them is read, too.
    const near = readWindows([plain(32, 100), plain(10_000, 100)], 1);
    expect(near).toEqual([{ offset_bytes: 32, size_bytes: 10_068, at: 0 }]);
  });

  test('begin and end at whole blocks, in the file and in memory, and none is in another', () => {
    const unit = [plain(5000, 10), plain(100_000, 8192), plain(4096, 3)];
    const windows = readWindows(unit, 4096);
    expect(windows).toEqual([
      { offset_bytes: 4096, size_bytes: 4096, at: 0 },
      { offset_bytes: 98_304, size_bytes: 12_288, at: 4096 },
    ]);
    expect(placeInWindows(windows, { offset_bytes: 5000, size_bytes: 10 })).toBe(904);
    expect(placeInWindows(windows, { offset_bytes: 100_000, size_bytes: 8192 })).toBe(4096 + 1696);
    expect(() => placeInWindows(windows, { offset_bytes: 110_590, size_bytes: 3 })).toThrow('in no window');
  });

  test('bring all ranges of what is converted', () => {
    const ranges = [
      { offset_bytes: 0, size_bytes: 64 },
      { offset_bytes: 500_000, size_bytes: 64 },
    ];
    const joined: Unit = [
      {
        ...plain(0, 0),
        kind: 'converted',
        name: '',
        layout: 1,
        type: 0,
        row_elements: 16,
        rows: 2,
        planes: 1,
        ranges,
      },
    ] as unknown as Unit;
    expect(readWindows(joined, 1).map(({ offset_bytes }) => offset_bytes)).toEqual([0, 500_000]);
    expect(readWindows([], 1)).toEqual([]);
    expect(windowMemory_bytes([])).toBe(0);
  });
});
