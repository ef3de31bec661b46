import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { EnergyMeter } from '../../../agent/devices/energy-meter.ts';
import type { DeviceDescription } from '../../../spec/session-record.ts';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'hpcserve-energy-test-'));
});
afterEach(() => rmSync(root, { recursive: true }));

function put(path: string, text: string): void {
  const file = join(root, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
}
const zone = 'sys/class/powercap/intel-rapl:0';
const cpu: DeviceDescription = { kind: 'cpu', model: 'Xeon-8480+', memory_bytes: 1, isa: [], cores: [0, 1] };

it('tells what a CPU package has taken since it began, once a second, and ends with its counter', () => {
  for (const core of [0, 1]) put(`sys/devices/system/cpu/cpu${core}/topology/physical_package_id`, '0\n');
  put(`${zone}/name`, 'package-0\n');
  put(`${zone}/max_energy_range_uj`, '262143328850\n');
  put(`${zone}/energy_uj`, '5000000\n');
  let now_ms = 0;
  const meter = new EnergyMeter([cpu], root, () => now_ms);
  expect(meter.because).toBeUndefined();
  now_ms = 1000;
  put(`${zone}/energy_uj`, '105000000\n');
  expect(meter.read()).toEqual({ joules: 100, at_ms: 1000 });
  put(`${zone}/energy_uj`, '205000000\n');
  now_ms = 1999;
  expect(meter.read()).toEqual({ joules: 100, at_ms: 1000 });
  now_ms = 2000;
  expect(meter.read()).toEqual({ joules: 200, at_ms: 2000 });
  put(`${zone}/energy_uj`, '');
  now_ms = 3000;
  expect(meter.read()).toBeUndefined();
  expect(meter.because).toMatch(/holds no count/);
});

it.each<[string, DeviceDescription[], RegExp]>([
  ['nothing', [], /no device of its own/],
  ['a MIG slice', [{ ...cpu, kind: 'mig', uuid: 'MIG-1' }], /no counter of its own/],
  ['a device that is emulated', [{ ...cpu, kind: 'gpu', emulated: 'cpu' }], /stands in for/],
  [
    'a GPU of another maker',
    [{ kind: 'gpu', model: 'MI250X', memory_bytes: 1, isa: [] }],
    /not one that NVML names/,
  ],
  [
    'devices of two kinds',
    [cpu, { kind: 'gpu', model: 'A100', memory_bytes: 1, isa: [], uuid: 'GPU-1' }],
    /several kinds/,
  ],
  ['cores that are in no package', [cpu], /which package/],
])('measures nothing of %s, and says why', (_, devices, why) => {
  mkdirSync(join(root, 'sys/devices/system/cpu'), { recursive: true });
  const meter = new EnergyMeter(devices, root);
  expect(meter.read()).toBeUndefined();
  expect(meter.because).toMatch(why);
});
