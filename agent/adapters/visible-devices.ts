/** Devices by number, for engines that end where a UUID names one. */
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { AdapterContext } from './adapter.ts';

/**
 * What of the environment has to differ for this version: several of vLLM take what names a device for a number, and
 * Slurm names slices by UUID. CUDA shows the first slice of a GPU in MIG mode that is named by number; with Slurm's
 * device cgroup that is the job's own, where it has one of that GPU.
 * @throws HpcserveError E_AGENT_ENGINE_OPTION where no number means the device
 */
export function devicesByNumber(unit: UnitSpec, context: AdapterContext): Record<string, string> {
  const { probed, devices = [] } = context;
  const named = devices.filter(({ visibility_variable }) => visibility_variable === 'CUDA_VISIBLE_DEVICES');
  if (!probed?.device_numbers || named.every(({ visibility_token }) => /^\d+$/.test(visibility_token!)))
    return {};
  const nameless = named.find(({ visibility_number }) => visibility_number === undefined);
  if (nameless !== undefined)
    throw new HpcserveError('E_AGENT_ENGINE_OPTION', {
      what: `${unit.model.name}: ${unit.engine} ${probed.version} cannot be given ${nameless.description.model}`,
      because: [
        `it is named ${nameless.visibility_token}, and this version takes devices by number alone`,
        'by number, CUDA shows another slice of that GPU, which this job has too',
      ],
      try: 'ask for one slice a job, or install a version that takes UUIDs',
    });
  return { CUDA_VISIBLE_DEVICES: named.map(({ visibility_number }) => visibility_number!).join(',') };
}
