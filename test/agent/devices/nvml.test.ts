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

/** What a job finds on its node in such a process: what names each device to a worker, and what was not to be asked. */
function discover(folder: string, visible?: string): unknown {
  const code = `import { discoverDevices } from ${JSON.stringify(new URL('../agent/devices/discover.js', built).href)};
    const told = ({ visibility_token, visibility_number }) => [visibility_token, visibility_number ?? null];
    const { gpu, mig, warnings } = discoverDevices({ units: [] }, 0, process.env);
    console.log(JSON.stringify({ gpu: gpu.map(told), mig: mig.map(told), warnings }));`;
  const env = { ...process.env, LD_LIBRARY_PATH: folder, CUDA_VISIBLE_DEVICES: visible };
  return JSON.parse(
    execFileSync(process.execPath, ['--input-type=module', '-e', code], { env, encoding: 'utf8' }),
  );
}

/** A library of NVML's layout in a folder of its own. */
async function double(...defined: string[]): Promise<AsyncDisposable & { path: string }> {
  const scratch = await scratchFolder();
  const source = fileURLToPath(new URL('nvml-double.c', import.meta.url));
  const library = join(scratch.path, 'libnvidia-ml.so.1');
  execFileSync('cc', ['-shared', '-fPIC', ...defined.map((name) => `-D${name}`), '-o', library, source]);
  return scratch;
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
    await using scratch = await double();
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

  test('what does not answer is told, and keeps its place: GPUs and slices', async () => {
    await using scratch = await double('LOST', 'SILENT=5');
    expect(listGpus(scratch.path)).toEqual({
      gpus: [
        null,
        expect.objectContaining({ uuid: 'GPU-2', mig_slices: [expect.objectContaining({ index: 0 }), null] }),
      ],
      warnings: ['GPU 0: GPU is lost (15)', 'MIG slice 2 of GPU 2: Unknown Error (999)'],
    });
  });

  test('a slice that does not answer gives its number to no other, and ends no list', async () => {
    await using scratch = await double('SILENT=3');
    const warnings = ['MIG slice 0 of GPU 2: Unknown Error (999)'];
    // By number, CUDA shows the first slice of a GPU: the silent one.
    expect(discover(scratch.path)).toEqual({ gpu: [['0', '0']], mig: [['MIG-5', null]], warnings });
    expect(discover(scratch.path, 'MIG-3,MIG-5')).toEqual({ gpu: [], mig: [['MIG-5', null]], warnings });
    // CUDA counts the GPUs that the job may open: GPU 2 is its second.
    for (const whole of ['1,0', 'GPU-2,GPU-0'])
      expect(discover(scratch.path, whole)).toMatchObject({ gpu: [[whole.split(',')[1], '0']], mig: [] });
  });

  test('behind slices that answer, a silent one changes nothing', async () => {
    await using scratch = await double('SILENT=5');
    const warnings = ['MIG slice 2 of GPU 2: Unknown Error (999)'];
    expect(discover(scratch.path, 'MIG-5,MIG-3,0')).toEqual({
      gpu: [['0', '0']],
      mig: [['MIG-3', '1']],
      warnings,
    });
    expect(discover(scratch.path, 'GPU-2')).toMatchObject({ gpu: [], mig: [['MIG-3', '1']] });
  });

  test('a GPU in MIG mode without slices is no device', async () => {
    await using scratch = await double('EMPTY');
    const warnings = ['GPU 2: it is in MIG mode and has no slice for this job'];
    expect(discover(scratch.path)).toEqual({ gpu: [['0', '0']], mig: [], warnings });
  });

  test('a driver that is installed and does not work says so', async () => {
    await using scratch = await double('BROKEN');
    expect(listGpus(scratch.path)).toEqual({
      name: 'NvmlError',
      message: 'nvmlInit_v2: Unknown Error (999)',
    });
  });

  test('the energy of GPUs is counted from the start of the agent, and asked once a second at most', async () => {
    await using scratch = await double();
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
    await using scratch = await double('OLD_GPU');
    expect(meter(scratch.path, ['GPU-0'])).toMatchObject({
      because: 'nvmlDeviceGetTotalEnergyConsumption: Something (3)',
    });
  });
});
