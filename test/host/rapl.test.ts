/** Counters of energy in folders like those of Linux; this machine may have none. */
import { execFileSync } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { RaplCounters } from '../../host/rapl.ts';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'hpcserve-rapl-test-'));
  chmodSync(root, 0o755);
});
afterEach(() => rmSync(root, { recursive: true }));

function put(path: string, text: string): void {
  const file = join(root, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, `${text}\n`);
}

/** Two packages of two cores with two threads each: 0, 1, 4, 5 and 2, 3, 6, 7. */
function twoSockets(): void {
  for (let cpu = 0; cpu < 8; cpu++) {
    const core = cpu % 4;
    put(`sys/devices/system/cpu/cpu${cpu}/topology/physical_package_id`, String(core < 2 ? 0 : 1));
    put(`sys/devices/system/cpu/cpu${cpu}/topology/thread_siblings_list`, `${core},${core + 4}`);
  }
  put('sys/devices/system/cpu/online', '0-7');
}

function zone(
  zone: string,
  name: string,
  energy_uj: number | string,
  range_uj: number | string = 1_000_000,
): void {
  put(`sys/class/powercap/${zone}/name`, name);
  put(`sys/class/powercap/${zone}/energy_uj`, String(energy_uj));
  put(`sys/class/powercap/${zone}/max_energy_range_uj`, String(range_uj));
}

function counters(cores: number[]): RaplCounters {
  const found = RaplCounters.of(cores, root);
  if (typeof found === 'string') throw new Error(found);
  return found;
}

it('count a package and its memory, and nothing twice', () => {
  twoSockets();
  zone('intel-rapl:0', 'package-0', 100);
  zone('intel-rapl:0:0', 'core', 10);
  zone('intel-rapl:0:1', 'dram', 50);
  zone('intel-rapl:1', 'package-1', 900);
  zone('intel-rapl:2', 'psys', 5);
  zone('intel-rapl-mmio:0', 'package-0', 100);
  put('sys/class/powercap/intel-rapl/enabled', '1');
  const energy = counters([0, 1, 4, 5]);
  expect(energy.read_j()).toBe(0);
  for (const [name, uj] of [
    ['0', 300_100],
    ['0:0', 99_999],
    ['0:1', 50_050],
    ['1', 800_000],
    ['2', 700_000],
  ] as const)
    put(`sys/class/powercap/intel-rapl:${name}/energy_uj`, String(uj));
  expect(energy.read_j()).toBeCloseTo(0.35, 9);
});

it('come round at their range, as often as they are read before that', () => {
  twoSockets();
  zone('intel-rapl:0', 'package-0', 900_000);
  const energy = counters([0, 1, 4, 5]);
  put('sys/class/powercap/intel-rapl:0/energy_uj', '100000');
  expect(energy.read_j()).toBeCloseTo(0.2, 9);
  put('sys/class/powercap/intel-rapl:0/energy_uj', '50000');
  expect(energy.read_j()).toBeCloseTo(1.15, 9);
});

it('of a package with several dies are all counted, and so are several packages', () => {
  twoSockets();
  zone('intel-rapl:0', 'package-0-die-0', 0);
  zone('intel-rapl:1', 'package-0-die-1', 0);
  zone('intel-rapl:2', 'package-1', 0);
  const energy = counters([0, 1, 2, 3]);
  for (const name of ['0', '1', '2']) put(`sys/class/powercap/intel-rapl:${name}/energy_uj`, '250000');
  expect(energy.read_j()).toBeCloseTo(0.75, 9);
});

it('are those of whole packages: one thread of each core is enough, a part of the cores is not', () => {
  twoSockets();
  zone('intel-rapl:0', 'package-0', 0);
  expect(counters([0, 1])).toBeDefined();
  expect(RaplCounters.of([0, 4], root)).toMatch(/^it has a part of the cores of package 0/);
  expect(RaplCounters.of([], root)).toMatch(/does not tell which package/);
});

it('that are not there, or say what no counter says, are not guessed', () => {
  twoSockets();
  expect(RaplCounters.of([0, 1], root)).toMatch(/counts no energy of package 0/);
  zone('intel-rapl:0', 'package-1', 0);
  expect(RaplCounters.of([0, 1], root)).toMatch(/counts no energy of package 0/);
  zone('intel-rapl:1', 'package-0', 0, 'unlimited');
  expect(RaplCounters.of([0, 1], root)).toMatch(/max_energy_range_uj holds no count: "unlimited"/);
  zone('intel-rapl:1', 'package-0', '-5');
  expect(RaplCounters.of([0, 1], root)).toMatch(/energy_uj holds no count/);
  zone('intel-rapl:1', 'package-0', 7);
  const energy = counters([0, 1]);
  put('sys/class/powercap/intel-rapl:1/energy_uj', 'garbage');
  expect(() => energy.read_j()).toThrow('holds no count');
});

it('that root alone may read are told as such', () => {
  twoSockets();
  zone('intel-rapl:0', 'package-0', 0);
  chmodSync(join(root, 'sys/class/powercap/intel-rapl:0/energy_uj'), 0o400);
  const built = new URL('../../dist/host/rapl.js', import.meta.url).href;
  const code = `import { RaplCounters } from ${JSON.stringify(built)}; console.log(RaplCounters.of([0, 1], process.argv[1]));`;
  // Who owns the file may read it, and root may read all.
  const asNobody = { uid: 65_534, encoding: 'utf8', cwd: '/' } as const;
  const argv = ['--input-type=module', '-e', code, root];
  if (process.getuid?.() !== 0) chmodSync(join(root, 'sys/class/powercap/intel-rapl:0/energy_uj'), 0);
  const said =
    process.getuid?.() === 0
      ? execFileSync(process.execPath, argv, asNobody)
      : String(RaplCounters.of([0, 1], root));
  expect(said).toMatch(/^root alone may read the counters of energy/);
});
