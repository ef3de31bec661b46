import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const program = fileURLToPath(new URL('../agent/adapters/tiny-model.py', import.meta.url));

/**
 * A model of less than a MB with random weights, as a Hugging Face folder.
 * @param python has torch and transformers
 */
export function writeTinyModel(python: string, folder: string, positions = 512): string {
  execFileSync(python, [program, folder, String(positions)], { stdio: ['ignore', 'ignore', 'inherit'] });
  return folder;
}
