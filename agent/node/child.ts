import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { cgroupOomKills } from '../../host/cgroup.ts';
import type { ProcessIdentity } from '../../host/process-identity.ts';
import { identitiesOfTree, killAll } from '../../host/process-tree.ts';
import { restrictProcess } from '../../native/affinity.ts';
import { ChildLog } from './child-log.ts';
import type { OrphanGuard } from './orphan-guard.ts';

export interface ChildOptions {
  argv: readonly string[];
  env: NodeJS.ProcessEnv;
  cwd?: string | undefined;
  log_file: string;
  guard: OrphanGuard;
  /** Opens Node's message channel. */
  ipc?: boolean;
  /** What the job may use on this node, where that is limited: said where a child is killed. */
  memory_limit_bytes?: number | undefined;
  /**
   * Cores that it and all it starts keep to; absent: those of the agent. Set on the child while it waits for its line,
   * so that nothing of it runs elsewhere, no program is needed for it, and whatever stands before the engine (a module,
   * apptainer, enroot, podman with crun) hands it on: the kernel keeps it over fork and exec.
   */
  cores?: readonly number[] | undefined;
  /** First process of what it starts and is no parent of: a container. */
  detached?: (() => Promise<number | undefined>) | undefined;
  /** Never shown in log lines that go into errors. */
  secrets?: readonly string[];
}

export interface ChildEnd {
  code: number | null;
  signal: NodeJS.Signals | null;
  /** How it ended, in words that follow its name: `exited with code 3`. */
  words: string;
  /** As a program ends that was asked to (SIGTERM), whoever asked. */
  orderly: boolean;
  /** The kernel ended it for want of memory, by its own count. */
  out_of_memory: boolean;
  /** The kernel ended some process of the job meanwhile for want of memory, by its own count. */
  oom_kills: boolean;
  /** The end of what it wrote, oldest line first: enough for people. */
  last_lines: string[];
  /** More of it, to find out why it ended. */
  tail: string[];
}

/**
 * An ignored signal stays ignored over exec: the warning before a time limit (SIGUSR1), which Slurm sends to all
 * processes of a step, would end programs that do not know it. The program starts only once a line says that the
 * guard knows its process group: where the agent is killed in between, the line never comes and nothing is left.
 * The program and its arguments are "$@", never parsed.
 */
const starter = [
  '/bin/sh',
  '-c',
  'trap "" USR1; read -r go || exit 0; exec "$@" </dev/null',
  'hpcserve-child',
];

const shown_lines = 12;
/**
 * What SIGKILL has not ended by then hangs in the kernel or in a driver. Lower: such a one is given up sooner; higher:
 * more memory may be given back meanwhile, as an end takes that long.
 */
const killed_ms_max = 30_000;
/**
 * What it started in groups of its own is killed behind it, and waited for so long: until then it has the device.
 * Higher: a start that follows may find memory that lower finds taken.
 */
const left_ms_max = 5_000;
const left_look_ms = 20;
/** What it started may hold its channel open: that is ended with it, and is not waited for longer. */
const last_messages_ms_max = 2_000;

/** A child process of the agent in a process group of its own, with its output in a file. */
export class Child {
  readonly process: ChildProcess;
  readonly ended: Promise<ChildEnd>;
  /** Set where the log file could not be opened: its output is lost. */
  readonly log_error: NodeJS.ErrnoException | undefined;
  /** Why it does not keep to its cores. */
  readonly affinity_error: string | undefined;
  readonly detached: ChildOptions['detached'];
  readonly #guard: OrphanGuard;
  readonly log: ChildLog;
  #alive = true;
  /** What there was of it when it was told to end: some of it may have left its group, and its parent ends. */
  #seen: Promise<ProcessIdentity[]> = Promise.resolve([]);

  constructor(options: ChildOptions) {
    this.#guard = options.guard;
    this.detached = options.detached;
    const kills_before = cgroupOomKills();
    const kept = ChildLog.open(options.log_file, options.secrets);
    this.log = kept.log;
    this.log_error = kept.error;
    const output = kept.descriptor ?? ('ignore' as const);
    const [program, ...args] = [...starter, ...options.argv];
    this.process = spawn(program!, args, {
      env: options.env,
      cwd: options.cwd,
      detached: true,
      stdio: options.ipc ? ['pipe', output, output, 'ipc'] : ['pipe', output, output],
      serialization: 'advanced',
    });
    if (kept.descriptor !== undefined) closeSync(kept.descriptor);
    // A child that ended before it read the line is reported by its exit.
    this.process.stdin?.on('error', () => undefined);
    if (this.process.pid !== undefined) {
      this.#guard.add(this.process.pid);
      this.affinity_error = restrictProcess(this.process.pid, options.cores ?? []);
      this.process.stdin?.end('go\n');
    }
    this.ended = new Promise((resolve) => {
      const finish = (code: number | null, signal: NodeJS.Signals | null, words: string): void => {
        if (!this.#alive) return;
        this.#alive = false;
        this.#signalGroup('SIGKILL'); // what it started and left behind
        const tail = this.log.tail();
        const orderly = code === 0 || code === exit_by_sigterm || signal === 'SIGTERM';
        const killed = signal === 'SIGKILL' || code === exit_by_sigkill;
        const oom_kills = (cgroupOomKills() ?? 0) > (kills_before ?? 0);
        const out_of_memory = killed && oom_kills;
        const end: ChildEnd = {
          code,
          signal,
          words: out_of_memory ? words.replace('perhaps out of memory', 'out of memory') : words,
          orderly,
          out_of_memory,
          oom_kills,
          last_lines: tail.slice(-shown_lines),
          tail,
        };
        void this.#untilNothingIsLeft().finally(() => {
          if (this.process.pid !== undefined) this.#guard.drop(this.process.pid);
          resolve(end);
        });
      };
      this.process.once('error', (error) => finish(null, null, `could not be started (${error.message})`));
      this.process.once('exit', (code, signal) => {
        const over = () => finish(code, signal, describeEnd(code, signal, options.memory_limit_bytes));
        // Its last messages may still lie in the channel, which is closed once they are read.
        if (!this.process.connected) return over();
        this.process.once('disconnect', over);
        setTimeout(over, last_messages_ms_max).unref();
      });
    });
  }

  get pid(): number | undefined {
    return this.process.pid;
  }

  get alive(): boolean {
    return this.#alive;
  }

  /** Whether it has ended; one that was killed is waited for. */
  async gone(): Promise<boolean> {
    await Promise.race([this.ended, delay(killed_ms_max, undefined, { ref: false })]);
    return !this.#alive;
  }

  /** SIGKILL to all of it. Whether and when the kernel ends it is not waited for: it may hang in a driver. */
  kill(): void {
    this.#look();
    void this.#seen.then((seen) => {
      this.#signalGroup('SIGKILL');
      killAll(seen);
    });
  }

  /**
   * SIGTERM to the whole group, SIGKILL to what is left after `grace_ms`.
   * @returns whether it has ended: one that hangs in the kernel does not end by that
   */
  async stop(grace_ms: number): Promise<boolean> {
    this.#look();
    // What left its group is found by its parents: these must still be there.
    await this.#seen;
    this.#signalGroup('SIGTERM');
    const cancel = new AbortController();
    const grace = delay(grace_ms, undefined, { signal: cancel.signal }).catch(() => undefined); // it ended first
    await Promise.race([this.ended, grace]);
    cancel.abort();
    if (this.#alive) this.kill();
    return this.gone();
  }

  /** Where /proc cannot be read, its group is ended all the same. */
  #look(): void {
    const { pid } = this.process;
    if (pid === undefined) return;
    this.#seen = Promise.all([this.#seen, identitiesOfTree(pid)]).then(
      (all) => all.flat(),
      () => [],
    );
  }

  /** TGI's shards have groups of their own, and daemons sessions: neither ends with the group. */
  async #untilNothingIsLeft(): Promise<void> {
    this.#look();
    const left = await this.#seen;
    const until_ms = performance.now() + left_ms_max;
    while (killAll(left).length > 0 && performance.now() < until_ms) await delay(left_look_ms);
  }

  #signalGroup(signal: NodeJS.Signals): void {
    if (this.process.pid === undefined) return;
    try {
      process.kill(-this.process.pid, signal);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
    }
  }
}

/** As shells and containers report a child that was ended by a signal: 128 + its number. */
const exit_by_sigterm = 143;
const exit_by_sigkill = 137;

/**
 * The kernel ends what has no memory left by SIGKILL and leaves no other trace in the process; people can
 * send it too, so it is only a guess, said as one.
 */
function describeEnd(
  code: number | null,
  signal: NodeJS.Signals | null,
  memory_limit_bytes: number | undefined,
): string {
  if (signal === 'SIGKILL' || code === exit_by_sigkill) {
    const limit =
      memory_limit_bytes === undefined
        ? ''
        : `: the job may use ${(memory_limit_bytes / 2 ** 30).toFixed(1)} GiB on this node`;
    return `was killed (SIGKILL), perhaps out of memory${limit}`;
  }
  return signal ? `was ended by ${signal}` : `exited with code ${code}`;
}
