import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';

const program = join(packageRoot, 'test/agent/adapters/tiny-model.py');

/**
 * A model of less than a MB with random weights, as a Hugging Face folder.
 * @param python has torch and transformers
 * @param plain says printable ASCII without spaces, and ends only where a grammar allows nothing else
 */
export function writeTinyModel(python: string, folder: string, positions = 512, plain = false): string {
  const argv = [program, folder, String(positions), ...(plain ? ['plain'] : [])];
  execFileSync(python, argv, { stdio: ['ignore', 'ignore', 'inherit'] });
  return folder;
}
