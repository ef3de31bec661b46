/** Processes that want one folder lock, each on a host of its own by name. */
import { type ChildProcess, spawn } from 'node:child_process';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import type { LockTimes } from '../../host/folder-lock.ts';

export const isRoot = process.getuid?.() === 0;
const program = fileURLToPath(new URL('lock-process.mjs', import.meta.url));

export interface Said {
  word: 'held' | 'taken' | 'lost' | 'asserted' | 'released' | 'onLost' | 'contended' | 'failed';
  pid?: number;
  host?: string;
  reason?: string;
  message?: string;
  rounds: number;
  together: number;
}

interface Place {
  /** Host name that the process sees; needs root. */
  host?: string;
  /** Who it is, in the group of that number; needs root. */
  uid?: number;
  group?: number;
  /** By how much its clock is wrong, as libfaketime says it. */
  clock?: string;
}

/** Variables by which libfaketime is in a process. Time that goes on evenly stays as it is. */
function fakeTime(clock: string): NodeJS.ProcessEnv {
  const { sharedObjects } = process.report.getReport() as unknown as { sharedObjects: string[] };
  const libraries = dirname(sharedObjects.find((path) => path.endsWith('/libc.so.6'))!);
  return {
    FAKETIME: clock,
    LD_PRELOAD: join(libraries, 'faketime/libfaketime.so.1'),
    FAKETIME_DONT_FAKE_MONOTONIC: '1',
  };
}

/** A process that wants the lock, and each word that it says of it. */
export class LockProcess implements AsyncDisposable {
  readonly process: ChildProcess;
  readonly #said: Said[] = [];
  #wake: (() => void) | undefined;
  #errors = '';

  constructor(
    path: string,
    times: LockTimes,
    { host, uid, group, clock }: Place = {},
    contend: readonly string[] = [],
  ) {
    const words = [process.execPath, program, path, JSON.stringify(times), ...contend];
    const there =
      host === undefined
        ? words
        : ['unshare', '--uts', 'sh', '-c', 'hostname "$0" && exec "$@"', host, ...words];
    const [command, ...argv] =
      uid === undefined
        ? there
        : ['setpriv', `--reuid=${uid}`, `--regid=${group}`, '--clear-groups', '--', ...there];
    const env = { ...process.env, ...(clock === undefined ? {} : fakeTime(clock)) };
    this.process = spawn(command!, argv, { stdio: ['pipe', 'pipe', 'pipe'], env });
    this.process.stderr!.on('data', (text: Buffer) => {
      this.#errors += text;
    });
    createInterface({ input: this.process.stdout! }).on('line', (line) => {
      this.#said.push(JSON.parse(line) as Said);
      this.#wake?.();
    });
    this.process.once('exit', () => this.#wake?.());
  }

  /** The next thing that it says. */
  async next(): Promise<Said> {
    while (this.#said.length === 0) {
      if (this.process.exitCode !== null || this.process.signalCode !== null)
        throw new Error(`the process ended: ${this.#errors}`);
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    return this.#said.shift()!;
  }

  ask(order: string): Promise<Said> {
    this.process.stdin!.write(`${order}\n`);
    return this.next();
  }

  signal(name: NodeJS.Signals): void {
    this.process.kill(name);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const ended = new Promise((resolve) => this.process.once('exit', resolve));
    this.process.kill('SIGKILL');
    await ended;
  }
}

/** Lets processes contend for a while, each at one of the paths. @returns what they found in all */
export async function contend(
  paths: readonly string[],
  times: LockTimes,
  mark: string,
  { processes, time_ms }: { processes: number; time_ms: number },
): Promise<{ rounds: number; together: number }> {
  const all = Array.from(
    { length: processes },
    (_, index) =>
      new LockProcess(paths[index % paths.length]!, times, isRoot ? { host: `node${index % 3}` } : {}, [
        mark,
        String(time_ms),
      ]),
  );
  const said = await Promise.all(all.map((each) => each.next()));
  return {
    rounds: said.reduce((sum, { rounds }) => sum + rounds, 0),
    together: said.reduce((sum, { together }) => sum + together, 0),
  };
}
