/** Stops the thread of a process that computes, and nothing else of it. */
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** What is lacking to stop threads; empty where nothing is. */
export const lacking =
  spawnSync('cc', ['--version']).status !== 0
    ? 'a C compiler'
    : process.getuid?.() !== 0
      ? 'root, to stop a thread of a process that is no child'
      : '';

/** Compiles what stops threads, which takes a while: before there is a thread that should be stopped soon. */
export function threadStopper(folder: string): string {
  const program = join(folder, 'stop-thread');
  execFileSync('cc', ['-O', '-o', program, fileURLToPath(new URL('stop-thread.c', import.meta.url))]);
  return program;
}

/**
 * @param program what `threadStopper` made
 * @param library in which it is to be met
 * @returns its process: the thread goes on when it is killed
 */
export async function stopComputingThread(
  pid: number,
  program: string,
  library = 'libggml-cpu',
): Promise<ChildProcess> {
  const stopper = spawn(program, [String(pid), library], { stdio: ['ignore', 'pipe', 'inherit'] });
  const [said] = await Promise.race([once(stopper.stdout!, 'data'), once(stopper, 'exit')]);
  if (String(said) !== 'stopped\n') throw new Error(`the thread was not stopped: ${said}`);
  return stopper;
}
