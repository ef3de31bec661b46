/** AMD GPUs from the kernel's KFD topology in /sys: no library needed. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { NodeDevice } from './node-device.ts';

export interface KfdNode {
  name: string;
  properties: string;
  /** `properties` of its memory banks. */
  memory_banks: string[];
}

const properties = (text: string): Map<string, number> =>
  new Map([...text.matchAll(/^(\w+) (\d+)$/gm)].map((match) => [match[1]!, Number(match[2])]));

/** What narrows a job to some of a node's GPUs, from the lowest layer up. */
export interface AmdVisibility {
  ROCR_VISIBLE_DEVICES?: string | undefined;
  HIP_VISIBLE_DEVICES?: string | undefined;
  CUDA_VISIBLE_DEVICES?: string | undefined;
}

/**
 * GPUs among KFD nodes (those with SIMD units), narrowed as ROCm does: `ROCR_VISIBLE_DEVICES` names them by index or by
 * `GPU-` and the unique id in hex, and `HIP_VISIBLE_DEVICES` counts within those. Schedulers set both to the same list
 * for programs that read either: then it is meant once. Where neither is there, HIP obeys CUDA's.
 * gfx_target_version 90010 is gfx90a: major × 10000 + minor × 100 + stepping, minor and stepping in hex.
 */
export function amdDevices(nodes: readonly KfdNode[], visible: AmdVisibility): NodeDevice[] {
  const gpus = nodes.filter((node) => (properties(node.properties).get('simd_count') ?? 0) > 0);
  const { ROCR_VISIBLE_DEVICES: rocr } = visible;
  const hip = visible.HIP_VISIBLE_DEVICES ?? (rocr === undefined ? visible.CUDA_VISIBLE_DEVICES : undefined);
  const shown = pick(
    gpus.map((gpu, index) => ({ gpu, token: String(index) })),
    rocr,
  );
  return (rocr !== undefined && rocr === hip ? shown : pick(shown, hip)).map(({ gpu, token }) =>
    deviceOf(gpu, token),
  );
}

interface ShownGpu {
  gpu: KfdNode;
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
      : shown.find(({ gpu }) => entry !== '' && uuidOf(gpu) === entry.toLowerCase());
    if (!found) break;
    picked.push(found);
  }
  return picked;
}

/** Undefined for GPUs without one. */
function uuidOf(gpu: KfdNode): string | undefined {
  const id = /^unique_id (\d+)$/m.exec(gpu.properties)?.[1];
  return id === undefined || id === '0' ? undefined : `gpu-${BigInt(id).toString(16).padStart(16, '0')}`;
}

function deviceOf(gpu: KfdNode, token: string): NodeDevice {
  const version = properties(gpu.properties).get('gfx_target_version') ?? 0;
  const target = [Math.floor(version / 10_000), Math.floor(version / 100) % 100, version % 100];
  return {
    description: {
      kind: 'gpu',
      model: gpu.name.trim() || 'AMD GPU',
      memory_bytes: localMemory(gpu),
      isa: [`gfx${target[0]}${target[1]!.toString(16)}${target[2]!.toString(16)}`],
    },
    visibility_token: token,
    visibility_variable: 'ROCR_VISIBLE_DEVICES',
  };
}

/** Heap types 1 and 2 are the public and private part of the GPU's own memory. */
function localMemory(gpu: KfdNode): number {
  const banks = gpu.memory_banks
    .map(properties)
    .filter((bank) => [1, 2].includes(bank.get('heap_type') ?? 0));
  return banks.reduce((sum, bank) => sum + (bank.get('size_in_bytes') ?? 0), 0);
}

/**
 * Without the nodes of GPUs that are another job's: the kernel keeps a process from those outside its device cgroup.
 */
export function readKfdNodes(root = '/', read: (path: string) => string = readText): KfdNode[] {
  const folder = join(root, 'sys/class/kfd/kfd/topology/nodes');
  if (!existsSync(folder)) return [];
  return readdirSync(folder)
    .sort((a, b) => Number(a) - Number(b))
    .flatMap((node) => {
      try {
        return [readKfdNode(join(folder, node), read)];
      } catch (error) {
        if (['EPERM', 'EACCES'].includes((error as NodeJS.ErrnoException).code ?? '')) return [];
        throw error;
      }
    });
}

const readText = (path: string): string => readFileSync(path, 'utf8');

function readKfdNode(folder: string, read: (path: string) => string): KfdNode {
  const banks = join(folder, 'mem_banks');
  return {
    name: read(join(folder, 'name')),
    properties: read(join(folder, 'properties')),
    memory_banks: existsSync(banks)
      ? readdirSync(banks).map((bank) => read(join(banks, bank, 'properties')))
      : [],
  };
}
