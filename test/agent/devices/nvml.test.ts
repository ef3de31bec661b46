/** native/nvml.ts against a library of the same layout (nvml-double.c), for want of a driver; needs a C compiler. */
import { execFileSync, spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { scratchFolder } from '../../mesh/support.ts';

const needs = spawnSync('cc', ['--version']).status === 0 ? '' : ' [skipped: needs a C compiler]';
const built = new URL('../../../dist/native/nvml.js', import.meta.url).href;

/** What `listNvidiaGpus` answers in a process whose loader looks into `folder` first. */
function listGpus(folder: string): unknown {
  const code = `import { listNvidiaGpus } from ${JSON.stringify(built)};
    try { console.log(JSON.stringify(listNvidiaGpus())); }
    catch (error) { console.log(JSON.stringify({ name: error.name, message: error.message })); }`;
  const output = execFileSync(process.execPath, ['--input-type=module', '-e', code], {
    env: { ...process.env, LD_LIBRARY_PATH: folder },
    encoding: 'utf8',
  });
  return JSON.parse(output);
}

/** What a meter of these GPUs reads, four times, in such a process. */
function meter(folder: string, uuids: readonly string[]): unknown {
  const devices = uuids.map((uuid) => ({ kind: 'gpu', model: 'H200', memory_bytes: 1, isa: [], uuid }));
  const code = `import { EnergyMeter } from ${JSON.stringify(new URL('../agent/devices/energy-meter.js', built).href)};
    let now_ms = 0;
    const meter = new EnergyMeter(${JSON.stringify(devices)}, '/', () => now_ms);
    const readings = [];
    for (const at_ms of [1000, 1900, 2000, 3000]) { now_ms = at_ms; readings.push(meter.read()); }
    console.log(JSON.stringify({ readings, because: meter.because }));`;
  const env = { ...process.env, LD_LIBRARY_PATH: folder };
  return JSON.parse(
    execFileSync(process.execPath, ['--input-type=module', '-e', code], { env, encoding: 'utf8' }),
  );
}

describe.skipIf(needs !== '')(`NVML${needs}`, () => {
  test('lists GPUs this job may open, and the slices of those in MIG mode', async () => {
    await using scratch = await scratchFolder();
    const source = fileURLToPath(new URL('nvml-double.c', import.meta.url));
    execFileSync('cc', ['-shared', '-fPIC', '-o', join(scratch.path, 'libnvidia-ml.so.1'), source]);
    const gpu = { name: 'NVIDIA H200', memory_bytes: 150_754_820_096, compute_capability: '9.0' };
    const slice = { name: 'NVIDIA H200 MIG 1g.18gb', memory_bytes: 18_790_481_920 };
    expect(listGpus(scratch.path)).toEqual({
      gpus: [
        {
          ...gpu,
          index: 0,
          uuid: 'GPU-0',
          pci_bus_id: '00000000:01:00.0',
          mig_enabled: false,
          mig_slices: [],
        },
        {
          ...gpu,
          index: 2,
          uuid: 'GPU-2',
          pci_bus_id: '00000000:03:00.0',
          mig_enabled: true,
          mig_slices: [
            { ...slice, index: 0, uuid: 'MIG-3' },
            { ...slice, index: 2, uuid: 'MIG-5' },
          ],
        },
      ],
      warnings: [],
    });
  });

  test('what does not answer is left out and told; a GPU of that kind keeps its place', async () => {
    await using scratch = await scratchFolder();
    const source = fileURLToPath(new URL('nvml-double.c', import.meta.url));
    const library = join(scratch.path, 'libnvidia-ml.so.1');
    execFileSync('cc', ['-shared', '-fPIC', '-DLOST', '-o', library, source]);
    expect(listGpus(scratch.path)).toEqual({
      gpus: [
        null,
        expect.objectContaining({ uuid: 'GPU-2', mig_slices: [expect.objectContaining({ index: 0 })] }),
      ],
      warnings: ['GPU 0: GPU is lost (15)', 'MIG slice 2 of GPU 2: Unknown Error (999)'],
    });
  });

  test('a driver that is installed and does not work says so', async () => {
    await using scratch = await scratchFolder();
    const source = fileURLToPath(new URL('nvml-double.c', import.meta.url));
    const library = join(scratch.path, 'libnvidia-ml.so.1');
    execFileSync('cc', ['-shared', '-fPIC', '-DBROKEN', '-o', library, source]);
    expect(listGpus(scratch.path)).toEqual({
      name: 'NvmlError',
      message: 'nvmlInit_v2: Unknown Error (999)',
    });
  });

  test('the energy of GPUs is counted from the start of the agent, and asked once a second at most', async () => {
    await using scratch = await scratchFolder();
    const source = fileURLToPath(new URL('nvml-double.c', import.meta.url));
    execFileSync('cc', ['-shared', '-fPIC', '-o', join(scratch.path, 'libnvidia-ml.so.1'), source]);
    const first = { joules: 3, at_ms: 1000 };
    expect(meter(scratch.path, ['GPU-0', 'GPU-2'])).toEqual({
      readings: [first, first, { joules: 6, at_ms: 2000 }, { joules: 9, at_ms: 3000 }],
    });
    expect(meter(scratch.path, ['GPU-0', 'GPU-7'])).toMatchObject({
      readings: [null, null, null, null],
      because: 'nvmlDeviceGetHandleByUUID: Something (6)',
    });
  });

  test('a GPU without such a counter says so', async () => {
    await using scratch = await scratchFolder();
    const source = fileURLToPath(new URL('nvml-double.c', import.meta.url));
    const library = join(scratch.path, 'libnvidia-ml.so.1');
    execFileSync('cc', ['-shared', '-fPIC', '-DOLD_GPU', '-o', library, source]);
    expect(meter(scratch.path, ['GPU-0'])).toMatchObject({
      because: 'nvmlDeviceGetTotalEnergyConsumption: Something (3)',
    });
  });
});
