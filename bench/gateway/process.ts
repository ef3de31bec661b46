import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';

/** A child process pinned to cores. */
export interface Pinned {
  child: ChildProcess;
  /** CPU time so far of the process and the ones it forked that still run, µs. */
  cpu_us(): number;
  stop(): Promise<void>;
}

/** Linux counts CPU time in USER_HZ, which is 100 on every architecture Node runs on. */
const tick_us = 10_000;

export function startPinned(
  taskset: string,
  cores: readonly number[],
  command: readonly string[],
  options: { cwd: string; output: number; env?: NodeJS.ProcessEnv },
): Pinned {
  const child = spawn(taskset, ['-c', cores.join(','), ...command], {
    cwd: options.cwd,
    stdio: ['ignore', options.output, options.output],
    env: { ...process.env, ...options.env },
  });
  const exited = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  return {
    child,
    cpu_us: () => {
      const pid = child.pid!;
      const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').filter(Boolean);
      return [String(pid), ...children].reduce((sum, one) => sum + processCpu_us(one), 0);
    },
    stop: async () => {
      child.kill('SIGTERM');
      const limit = setTimeout(() => child.kill('SIGKILL'), 10_000);
      await exited;
      clearTimeout(limit);
    },
  };
}

/** CPU time of all threads of a process. */
function processCpu_us(pid: string): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8');
  const [utime, stime] = fields
    .slice(fields.lastIndexOf(')') + 2)
    .split(' ')
    .slice(11, 13);
  return (Number(utime) + Number(stime)) * tick_us;
}

/** Resolves when something listens; rejects after `limit_ms`, or when the child has ended. */
export async function untilListening(port: number, child: ChildProcess, limit_ms = 10_000): Promise<void> {
  const deadline = performance.now() + limit_ms;
  while (performance.now() < deadline) {
    if (child.exitCode !== null) throw new Error(`the process for port ${port} ended with ${child.exitCode}`);
    const open = await new Promise<boolean>((resolve) => {
      const socket = connect(port, '127.0.0.1');
      socket.once('connect', () => resolve(true));
      socket.once('error', () => resolve(false));
      socket.once('close', () => resolve(false));
      socket.once('connect', () => socket.destroy());
    });
    if (open) return;
    await delay(20);
  }
  throw new Error(`nothing listens on port ${port} after ${limit_ms} ms`);
}
