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
    try { console.log(JSON.stringify({ gpus: listNvidiaGpus() })); }
    catch (error) { console.log(JSON.stringify({ name: error.name, message: error.message })); }`;
  const output = execFileSync(process.execPath, ['--input-type=module', '-e', code], {
    env: { ...process.env, LD_LIBRARY_PATH: folder },
    encoding: 'utf8',
  });
  return JSON.parse(output);
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
});
