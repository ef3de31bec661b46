import type { NodeDevice } from '../devices/node-device.ts';

const variables = ['CUDA_VISIBLE_DEVICES', 'ROCR_VISIBLE_DEVICES'] as const;
/** Of AMD's upper layers: they count within what ROCR shows, so those of the job would pick from a child's few. */
const relative = ['HIP_VISIBLE_DEVICES', 'GPU_DEVICE_ORDINAL'] as const;

/**
 * The environment for a child that may use these devices and no other. Tokens are in the form the job's own
 * environment uses; order by PCI bus makes indices mean the same to CUDA as to NVML. An empty list hides all GPUs;
 * of two vendors only the used one's variable is set, for HIP obeys CUDA's too.
 */
export function environmentFor(
  devices: readonly NodeDevice[],
  environment: NodeJS.ProcessEnv,
): NodeJS.ProcessEnv {
  const result: NodeJS.ProcessEnv = { ...environment, CUDA_DEVICE_ORDER: 'PCI_BUS_ID' };
  for (const variable of relative) delete result[variable];
  const accelerated = devices.some((device) => device.visibility_variable !== undefined);
  for (const variable of variables) {
    const tokens = devices
      .filter((device) => device.visibility_variable === variable)
      .map((device) => device.visibility_token!);
    if (tokens.length === 0 && accelerated) delete result[variable];
    else result[variable] = tokens.join(',');
  }
  return result;
}
