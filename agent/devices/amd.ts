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

/**
 * GPUs among KFD nodes (those with SIMD units), narrowed to what `ROCR_VISIBLE_DEVICES` names by index.
 * gfx_target_version 90010 is gfx90a: major × 10000 + minor × 100 + stepping, minor and stepping in hex.
 */
export function amdDevices(nodes: readonly KfdNode[], visible: string | undefined): NodeDevice[] {
  const gpus = nodes.filter((node) => (properties(node.properties).get('simd_count') ?? 0) > 0);
  const indices = visible === undefined ? gpus.map((_, index) => String(index)) : visible.split(',');
  const devices: NodeDevice[] = [];
  for (const token of indices) {
    const gpu = /^\s*\d+\s*$/.test(token) ? gpus[Number(token)] : undefined;
    if (!gpu) break;
    const version = properties(gpu.properties).get('gfx_target_version') ?? 0;
    const target = [Math.floor(version / 10_000), Math.floor(version / 100) % 100, version % 100];
    devices.push({
      description: {
        kind: 'gpu',
        model: gpu.name.trim() || 'AMD GPU',
        memory_bytes: localMemory(gpu),
        isa: [`gfx${target[0]}${target[1]!.toString(16)}${target[2]!.toString(16)}`],
      },
      visibility_token: token.trim(),
      visibility_variable: 'ROCR_VISIBLE_DEVICES',
    });
  }
  return devices;
}

/** Heap types 1 and 2 are the public and private part of the GPU's own memory. */
function localMemory(gpu: KfdNode): number {
  const banks = gpu.memory_banks
    .map(properties)
    .filter((bank) => [1, 2].includes(bank.get('heap_type') ?? 0));
  return banks.reduce((sum, bank) => sum + (bank.get('size_in_bytes') ?? 0), 0);
}

export function readKfdNodes(root = '/'): KfdNode[] {
  const folder = join(root, 'sys/class/kfd/kfd/topology/nodes');
  if (!existsSync(folder)) return [];
  return readdirSync(folder)
    .sort((a, b) => Number(a) - Number(b))
    .map((node) => {
      const banks = join(folder, node, 'mem_banks');
      return {
        name: readFileSync(join(folder, node, 'name'), 'utf8'),
        properties: readFileSync(join(folder, node, 'properties'), 'utf8'),
        memory_banks: existsSync(banks)
          ? readdirSync(banks).map((bank) => readFileSync(join(banks, bank, 'properties'), 'utf8'))
          : [],
      };
    });
}
