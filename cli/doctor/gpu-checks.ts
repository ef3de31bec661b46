/** GPUs that their drivers know: what wrapped engines compute on, and the native engine where a backend finds them. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { LoadedSite } from '../../control/state/site-files.ts';
import { describeKfdGpu, readKfdNodes } from '../../native/kfd.ts';
import type { NvmlGpu } from '../../native/nvml.ts';
import { formatBytes } from '../format/quantities.ts';
import { type CheckResult, passed, warning } from './check.ts';

/**
 * GPUs of NVIDIA with their MIG slices, and those of AMD, each with its driver. Nothing is said where there are none,
 * nor outside of a job on a site with Slurm: its nodes have others than this machine.
 * @param root of the kernel's folders
 */
export async function checkGpus(
  { site }: Pick<LoadedSite, 'site'>,
  environment: Readonly<Record<string, string | undefined>>,
  root = '/',
): Promise<CheckResult[]> {
  if (site.kind !== 'local' && environment.SLURM_JOB_ID === undefined) return [];
  return [...(await nvidia(root)), ...amd(root)];
}

async function nvidia(root: string): Promise<CheckResult[]> {
  const check = `NVIDIA GPUs${driverOf('nvidia', root)}`;
  const mend = 'see what nvidia-smi says on the node, and tell its operator';
  try {
    // It brings an addon, which a machine may be too old for: then that is what is said.
    const { listNvidiaGpus } = await import('../../native/nvml.ts');
    const listing = listNvidiaGpus();
    if (!listing) return [];
    const known = listing.gpus.flatMap((gpu) => (gpu ? [describeNvidia(gpu)] : [])).join('; ');
    if (listing.warnings.length > 0)
      return [warning(check, [known, ...listing.warnings].filter(Boolean).join('; '), mend)];
    return known === '' ? [] : [passed(check, known)];
  } catch (error) {
    return [warning(check, `they cannot be listed: ${(error as Error).message}`, mend)];
  }
}

function describeNvidia({ index, name, memory_bytes, mig_enabled, mig_slices }: NvmlGpu): string {
  const whole = `${index}: ${name}, ${formatBytes(memory_bytes)}`;
  const slices = mig_slices.flatMap((slice) =>
    slice ? [`${slice.name.split(' MIG ').at(-1)}, ${formatBytes(slice.memory_bytes)}`] : [],
  );
  return mig_enabled ? `${whole}, in slices (${slices.join('; ') || 'none'})` : whole;
}

function amd(root: string): CheckResult[] {
  const gpus = readKfdNodes(root).flatMap((node) => describeKfdGpu(node) ?? []);
  if (gpus.length === 0) return [];
  const words = gpus.map(
    ({ model, target, memory_bytes }, index) =>
      `${index}: ${model} (${target}), ${formatBytes(memory_bytes)}`,
  );
  return [passed(`AMD GPUs${driverOf('amdgpu', root)}`, words.join('; '))];
}

/** Of the kernel's module, in words; empty where it does not say, as AMD's of the kernel itself. */
function driverOf(module: string, root: string): string {
  const path = join(root, 'sys/module', module, 'version');
  return existsSync(path) ? ` (driver ${readFileSync(path, 'utf8').trim()})` : '';
}
