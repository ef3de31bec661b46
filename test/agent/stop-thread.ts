/** Stops the thread of a process that computes, and nothing else of it. */
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** What is lacking to stop threads; empty where nothing is. */
export const lacking =
  spawnSync('cc', ['--version']).status !== 0
    ? 'a C compiler'
    : process.getuid?.() !== 0
      ? 'root, to stop a thread of a process that is no child'
      : '';

/** @returns its process: the thread goes on when it is killed */
export async function stopBusiestThread(pid: number, folder: string): Promise<ChildProcess> {
  const program = join(folder, 'stop-thread');
  execFileSync('cc', ['-o', program, fileURLToPath(new URL('stop-thread.c', import.meta.url))]);
  const before = cpuTicks(pid);
  await new Promise((resolve) => setTimeout(resolve, 400));
  const [busiest] = [...cpuTicks(pid)]
    .filter(([thread]) => thread !== pid)
    .sort(([a, some], [b, more]) => more - (before.get(b) ?? 0) - (some - (before.get(a) ?? 0)));
  const stopper = spawn(program, [String(busiest![0])], { stdio: ['ignore', 'pipe', 'inherit'] });
  const [said] = await Promise.race([once(stopper.stdout!, 'data'), once(stopper, 'exit')]);
  if (String(said) !== 'stopped\n') throw new Error(`the thread was not stopped: ${said}`);
  return stopper;
}

/** Clock ticks that each thread has used in user mode. */
function cpuTicks(pid: number): Map<number, number> {
  return new Map(
    readdirSync(`/proc/${pid}/task`).map((thread) => {
      const fields = readFileSync(`/proc/${pid}/task/${thread}/stat`, 'utf8').split(') ')[1]!.split(' ');
      return [Number(thread), Number(fields[11])];
    }),
  );
}
