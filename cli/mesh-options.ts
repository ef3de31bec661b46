import { type Command, InvalidArgumentError, Option } from 'commander';
import type { MeshQuery } from '../control/gateway/admin.ts';

export interface MeshOptions {
  gpu?: string;
  memoryGb?: number;
  model?: string;
  provider?: string;
  tier?: string;
}

/** Options of every command that asks who is in the mesh. */
export function addMeshOptions(command: Command): Command {
  return command
    .option('--gpu <name>', 'only with this GPU: GH200, A100, or any')
    .option('--memory-gb <number>', 'only with a device of at least so much memory', parseGb)
    .option('--model <name>', 'only what serves this model, by name or alias')
    .option(
      '--provider <name>',
      'only of this provider: user@site, *@site, or the beginning of a fingerprint',
    )
    .addOption(new Option('--tier <tier>', 'only of this tier').choices(['stable', 'scavenger']));
}

export function meshQuery({ gpu, memoryGb, model, provider, tier }: MeshOptions): MeshQuery {
  return { gpu, memory_gb_min: memoryGb, model, provider, tier };
}

function parseGb(text: string): number {
  const value = Number(text);
  if (!(value > 0)) throw new InvalidArgumentError('a number of GB, such as 40.');
  return value;
}
