import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { pageCacheRoom_bytes } from '../../host/page-cache-room.ts';
import { fitsHostCache } from '../../solver/reuse/host-cache.ts';

const gib = 2 ** 30;
const roots: string[] = [];
afterEach(() => {
  for (const root of roots.splice(0)) rmSync(root, { recursive: true });
});

/** A /proc and cgroups as a kernel shows them. */
function machine(files: Record<string, string>): string {
  const root = mkdtempSync(join(tmpdir(), 'hpcserve-room-'));
  roots.push(root);
  const all = { 'proc/meminfo': `MemTotal: 99 kB\nMemAvailable: ${(64 * gib) / 1024} kB\n`, ...files };
  for (const [path, text] of Object.entries(all)) {
    mkdirSync(join(root, path, '..'), { recursive: true });
    writeFileSync(join(root, path), text);
  }
  return root;
}

test('without limits it is what the machine has available', () => {
  expect(pageCacheRoom_bytes(machine({}))).toBe(64 * gib);
});

test('a job has what its limit leaves beside programs and memory files: its page cache counts as room', () => {
  const root = machine({
    'proc/self/cgroup': '0::/slurm/job_7/step_0\n',
    'proc/self/mountinfo': '30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n',
    'sys/fs/cgroup/slurm/job_7/memory.max': `${32 * gib}\n`,
    'sys/fs/cgroup/slurm/job_7/memory.stat': `anon ${4 * gib}\nfile ${27 * gib}\nshmem ${12 * gib}\n`,
    'sys/fs/cgroup/slurm/job_7/step_0/memory.max': 'max\n',
  });
  expect(pageCacheRoom_bytes(root)).toBe(16 * gib);
});

test('the tightest of several limits counts, by version 1, too; what is over its limit has none', () => {
  const mount = 'sys/fs/cgroup/memory/slurm';
  const files = {
    'proc/self/cgroup': '5:memory:/slurm/job_7\n',
    'proc/self/mountinfo': '30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n',
    [`${mount}/memory.limit_in_bytes`]: `${20 * gib}\n`,
    [`${mount}/memory.stat`]: `rss 5\ntotal_rss ${2 * gib}\ntotal_shmem ${gib}\n`,
    [`${mount}/job_7/memory.limit_in_bytes`]: `${18 * gib}\n`,
    [`${mount}/job_7/memory.stat`]: `total_rss 0\n`,
  };
  expect(pageCacheRoom_bytes(machine(files))).toBe(17 * gib);
  const over = { ...files, [`${mount}/job_7/memory.stat`]: `total_rss ${19 * gib}\n` };
  expect(pageCacheRoom_bytes(machine(over))).toBe(0);
});

test('a load that is larger cannot be kept', () => {
  expect(fitsHostCache(16 * gib, 16 * gib)).toBe(true);
  expect(fitsHostCache(16 * gib + 1, 16 * gib)).toBe(false);
  expect(fitsHostCache(1, 0)).toBe(false);
});
