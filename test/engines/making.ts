/** What making an environment has in common: programs that are run, and a folder that is whole or not there. */
import { spawn } from 'node:child_process';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { engines_folder, isReady, ready_file } from './environments.ts';

/** Something that is needed and is not on this machine: the message says what, and what would mend it. */
export class NotHere extends Error {
  override readonly name = 'NotHere';
}

/** So much of what a program that failed wrote last is shown. */
const shown_lines = 12;

/**
 * What it wrote to stdout.
 * @throws NotHere where it cannot be started or fails, with its last words
 */
export function run(argv: readonly string[], environment: NodeJS.ProcessEnv = {}): Promise<string> {
  const [program, ...args] = argv;
  return new Promise((resolve, reject) => {
    const child = spawn(program!, args, {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, ...environment },
    });
    let [stdout, all] = ['', ''];
    child.stdout.on('data', (chunk: Buffer) => {
      stdout += chunk.toString();
      all = `${all}${chunk.toString()}`.slice(-64 * 1024);
    });
    child.stderr.on('data', (chunk: Buffer) => {
      all = `${all}${chunk.toString()}`.slice(-64 * 1024);
    });
    child.once('error', (error) => reject(new NotHere(`${program}: ${error.message}`)));
    child.once('close', (code, signal) => {
      if (code === 0) return resolve(stdout);
      const words = all.trim().split('\n').slice(-shown_lines).join('\n  ');
      reject(new NotHere(`${argv.slice(0, 4).join(' ')} … ended with ${code ?? signal}:\n  ${words}`));
    });
  });
}

/**
 * Makes the folder of an environment, unless one by the same recipe stands there. The mark comes last, so what was
 * interrupted is begun again.
 * @param recipe changes with whatever would make another environment
 */
export async function madeOnce(
  name: string,
  recipe: string,
  say: (line: string) => void,
  make: (folder: string) => Promise<void>,
): Promise<void> {
  const folder = join(engines_folder, name);
  if (isReady(name, recipe)) return say(`it stands in ${folder}`);
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  await make(folder);
  writeFileSync(join(folder, ready_file), recipe);
  say(`made: ${folder}`);
}
