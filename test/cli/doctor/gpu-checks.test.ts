/** What `doctor` says of GPUs that their drivers know, with a library of NVML's layout and a made-up /sys. */
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import type { CheckResult } from '../../../cli/doctor/check.ts';
import { checkGpus } from '../../../cli/doctor/gpu-checks.ts';
import { siteSchema } from '../../../spec/site.ts';
import { scratchFolder } from '../../mesh/support.ts';
import { temporaryHome } from '../support.ts';

const needs = spawnSync('cc', ['--version']).status === 0 ? '' : ' [skipped: needs a C compiler]';
const home = temporaryHome();
afterAll(() => home.dispose());

async function checksWith(...defined: string[]): Promise<CheckResult[]> {
  const source = fileURLToPath(new URL('../../agent/devices/nvml-double.c', import.meta.url));
  const library = join(home.folder, 'libnvidia-ml.so.1');
  execFileSync('cc', ['-shared', '-fPIC', ...defined.map((name) => `-D${name}`), '-o', library, source]);
  const env = { LD_LIBRARY_PATH: home.folder };
  const { stdout } = await home.run(['doctor', '--site', 'local', '--json'], { env });
  const { checks } = JSON.parse(stdout) as { checks: CheckResult[] };
  return checks.filter(({ check }) => check.startsWith('NVIDIA GPUs'));
}

describe.skipIf(needs !== '')(`doctor, of GPUs of NVIDIA${needs}`, () => {
  it('lists them with all of their slices', async () => {
    expect(await checksWith()).toMatchObject([
      {
        status: 'PASSED',
        found:
          '0: NVIDIA H200, 140 GiB; 2: NVIDIA H200, 140 GiB, in slices (1g.18gb, 17.5 GiB; 1g.18gb, 17.5 GiB)',
      },
    ]);
  });

  it('says which of them do not answer, beside the others', async () => {
    expect(await checksWith('LOST', 'SILENT=5')).toMatchObject([
      {
        status: 'WARNING',
        found:
          '2: NVIDIA H200, 140 GiB, in slices (1g.18gb, 17.5 GiB); GPU 0: GPU is lost (15); MIG slice 2 of GPU 2: Unknown Error (999)',
      },
    ]);
    expect(await checksWith('BROKEN')).toMatchObject([
      {
        status: 'WARNING',
        found: expect.stringMatching(/^they cannot be listed: nvmlInit_v2: Unknown Error/),
      },
    ]);
  });
});

describe('doctor, of GPUs of AMD', () => {
  const of = async (kind: object, environment: Record<string, string>, root: string) =>
    (await checkGpus({ site: siteSchema.parse({ name: 'here', ...kind }) }, environment, root)).filter(
      ({ check }) => check.startsWith('AMD'),
    );

  it('lists them with their driver where they are, and says nothing on a login node', async () => {
    await using scratch = await scratchFolder();
    const nodes = join(scratch.path, 'sys/class/kfd/kfd/topology/nodes');
    const bank = join(nodes, '1/mem_banks/0');
    await mkdir(join(nodes, '0'), { recursive: true });
    await mkdir(bank, { recursive: true });
    await writeFile(join(nodes, '0/name'), '\n');
    await writeFile(join(nodes, '0/properties'), 'simd_count 0\n');
    await writeFile(join(nodes, '1/name'), 'aldebaran\n');
    await writeFile(join(nodes, '1/properties'), 'simd_count 440\ngfx_target_version 90010\n');
    await writeFile(join(bank, 'properties'), `heap_type 1\nsize_in_bytes ${64 * 2 ** 30}\n`);
    await mkdir(join(scratch.path, 'sys/module/amdgpu'), { recursive: true });
    await writeFile(join(scratch.path, 'sys/module/amdgpu/version'), '6.3.6\n');
    const expected = [
      { check: 'AMD GPUs (driver 6.3.6)', status: 'PASSED', found: '0: aldebaran (gfx90a), 64.0 GiB' },
    ];
    expect(await of({ kind: 'local' }, {}, scratch.path)).toEqual(expected);
    expect(await of({ kind: 'slurm' }, { SLURM_JOB_ID: '7' }, scratch.path)).toEqual(expected);
    expect(await of({ kind: 'slurm' }, {}, scratch.path)).toEqual([]);
    expect(await of({ kind: 'local' }, {}, join(scratch.path, 'none'))).toEqual([]);
  });
});
