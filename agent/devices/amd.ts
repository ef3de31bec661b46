/** AMD GPUs that a job may use, of those that the kernel knows. */
import { describeKfdGpu, type KfdGpu, type KfdNode } from '../../native/kfd.ts';
import type { NodeDevice } from './node-device.ts';

/** What narrows a job to some of a node's GPUs, from the lowest layer up. */
export interface AmdVisibility {
  ROCR_VISIBLE_DEVICES?: string | undefined;
  HIP_VISIBLE_DEVICES?: string | undefined;
  CUDA_VISIBLE_DEVICES?: string | undefined;
}

/**
 * GPUs among KFD nodes, narrowed as ROCm does: `ROCR_VISIBLE_DEVICES` names them by index or by
 * `GPU-` and the unique id in hex, and `HIP_VISIBLE_DEVICES` counts within those. Schedulers set both to the same list
 * for programs that read either: then it is meant once. Where neither is there, HIP obeys CUDA's.
 */
export function amdDevices(nodes: readonly KfdNode[], visible: AmdVisibility): NodeDevice[] {
  const { ROCR_VISIBLE_DEVICES: rocr } = visible;
  const hip = visible.HIP_VISIBLE_DEVICES ?? (rocr === undefined ? visible.CUDA_VISIBLE_DEVICES : undefined);
  const shown = pick(
    gpusAmong(nodes).map((gpu, index) => ({ ...gpu, token: String(index) })),
    rocr,
  );
  return (rocr !== undefined && rocr === hip ? shown : pick(shown, hip)).map(deviceOf);
}

function gpusAmong(nodes: readonly KfdNode[]): { node: KfdNode; gpu: KfdGpu }[] {
  return nodes.flatMap((node) => {
    const gpu = describeKfdGpu(node);
    return gpu ? [{ node, gpu }] : [];
  });
}

interface ShownGpu {
  node: KfdNode;
  gpu: KfdGpu;
  /** What names it to ROCR. */
  token: string;
}

/** Those that a list names, in its order; as in ROCm, the first entry that names nothing ends it. */
function pick(shown: readonly ShownGpu[], list: string | undefined): ShownGpu[] {
  if (list === undefined) return [...shown];
  const picked: ShownGpu[] = [];
  for (const entry of list.split(',').map((text) => text.trim())) {
    const found = /^\d+$/.test(entry)
      ? shown[Number(entry)]
      : shown.find(({ node }) => entry !== '' && uuidOf(node) === entry.toLowerCase());
    if (!found) break;
    picked.push(found);
  }
  return picked;
}

/** Undefined for GPUs without one. */
function uuidOf(node: KfdNode): string | undefined {
  const id = /^unique_id (\d+)$/m.exec(node.properties)?.[1];
  return id === undefined || id === '0' ? undefined : `gpu-${BigInt(id).toString(16).padStart(16, '0')}`;
}

function deviceOf({ gpu, token }: ShownGpu): NodeDevice {
  const { model, memory_bytes, target } = gpu;
  return {
    description: { kind: 'gpu', model, memory_bytes, isa: [target] },
    visibility_token: token,
    visibility_variable: 'ROCR_VISIBLE_DEVICES',
  };
}
