import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import koffi from 'koffi';

/** A child process pinned to cores. */
export interface Pinned {
  child: ChildProcess;
  /** CPU time so far of the process and the ones it forked that still run, µs. */
  cpu_us(): number;
  stop(): Promise<void>;
}

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
      return [pid, ...children.map(Number)].reduce((sum, one) => sum + processCpu_us(one), 0);
    },
    stop: async () => {
      child.kill('SIGTERM');
      const limit = setTimeout(() => child.kill('SIGKILL'), 10_000);
      await exited;
      clearTimeout(limit);
    },
  };
}

const clockGettime = koffi.load('libc.so.6').func('int clock_gettime(int clock, void *time)');
/** <linux/posix-timers.h>: the clock of a process that counts what its threads, ended ones too, ran. */
const clock_sched = 2;

/**
 * CPU time of all threads of a process, µs. From its clock, which counts nanoseconds: /proc/PID/stat counts hundredths
 * of a second, which are the events of a slow stream over whole seconds.
 * @throws Error where it has ended
 */
export function processCpu_us(pid: number): number {
  const time = Buffer.alloc(16);
  if (clockGettime((~pid << 3) | clock_sched, time) !== 0) throw new Error(`process ${pid} has no clock`);
  return Number(time.readBigInt64LE(0)) * 1e6 + Number(time.readBigInt64LE(8)) / 1e3;
}

/** Resolves when something listens; rejects after `limit_ms`, or when the child has ended. */
export async function untilListening(port: number, child: ChildProcess, limit_ms = 60_000): Promise<void> {
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
