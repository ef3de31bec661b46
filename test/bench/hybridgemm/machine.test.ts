/** Which GPU a report is of. */
import { expect, test } from 'vitest';
import { machineRows } from '../../../bench/hybridgemm/machine.ts';

const measured = { link_bytes_per_s: 380e9, memory_bytes_per_s: 3.2e12 };

test('a report names its GPU, its processors, its link and its memory', () => {
  const rows = machineRows(measured, 132, ['NVIDIA GH200 480GB']);
  expect(rows.map(({ what, ours }) => [what, ours])).toEqual([
    ['link of NVIDIA GH200 480GB, 132 processors: a copy from page-locked memory', 380],
    ['memory of NVIDIA GH200 480GB, 132 processors: a copy within it', 3200],
  ]);
  expect(machineRows(measured, 16, [])[0]!.what).toMatch(/^link of a GPU that NVML does not name/);
});
