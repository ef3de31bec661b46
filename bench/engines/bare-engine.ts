/** The same engine without us: the command line and the environment of one that a node agent runs, on a port. */
import { type ChildProcess, spawn } from 'node:child_process';
import { openSync, readFileSync, readlinkSync } from 'node:fs';
import { createServer } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { processesWithArgument } from '../../host/process-identity.ts';

const ready_s = 600;

/** What runs already, as the kernel has it. */
export interface EngineCommand {
  argv: string[];
  environment: Record<string, string>;
  cwd: string;
  /** Cores that it may use, as taskset takes them. */
  cores: string;
}

/** The engines that serve a model folder, without the processes that they started themselves. */
export function engineCommands(model_folder: string): EngineCommand[] {
  return processesWithArgument((argument) => argument === model_folder).flatMap((pid) => {
    const argv = nulSeparated(pid, 'cmdline');
    const at = argv.findIndex((word, index) => word === 'serve' && /(^|\/)vllm$/.test(argv[index - 1] ?? ''));
    if (at < 0) return [];
    const environment = Object.fromEntries(
      nulSeparated(pid, 'environ').map((entry) => {
        const equals = entry.indexOf('=');
        return [entry.slice(0, equals), entry.slice(equals + 1)];
      }),
    );
    const cores = /^Cpus_allowed_list:\s+(\S+)$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]!;
    return [{ argv, environment, cwd: readlinkSync(`/proc/${pid}/cwd`), cores }];
  });
}

function nulSeparated(pid: number, file: string): string[] {
  return readFileSync(`/proc/${pid}/${file}`, 'utf8').split('\0').slice(0, -1);
}

/** One engine with the command line of another, on a port of its own; nothing of ours is between it and its clients. */
export class BareEngine {
  readonly url: string;
  readonly #child: ChildProcess;

  private constructor(url: string, child: ChildProcess) {
    this.url = url;
    this.#child = child;
  }

  /** @throws Error: it ended before it served, or took too long; its output is in `log_file` */
  static async start(
    { argv, environment, cwd, cores }: EngineCommand,
    key: string,
    log_file: string,
  ): Promise<BareEngine> {
    const port = await freePort();
    const socket = argv.indexOf('--uds');
    if (socket < 0)
      throw new Error('the engine behind hpcserve has no --uds: another version than was meant');
    const listening = argv.toSpliced(socket, 2, '--host', '127.0.0.1', '--port', String(port));
    const output = openSync(log_file, 'w');
    const child = spawn('taskset', ['--cpu-list', cores, ...listening], {
      cwd,
      env: { ...environment, VLLM_API_KEY: key },
      stdio: ['ignore', output, output],
      detached: true,
    });
    const engine = new BareEngine(`http://127.0.0.1:${port}/v1`, child);
    for (const end_ms = performance.now() + 1000 * ready_s; ; ) {
      if (child.exitCode !== null)
        throw new Error(`the bare engine ended with ${child.exitCode}: ${log_file}`);
      if (performance.now() > end_ms) throw new Error(`the bare engine does not serve: ${log_file}`);
      if (await serves(port)) return engine;
      await sleep(250);
    }
  }

  /** Ends it and the processes that it started, which are one group. */
  async stop(): Promise<void> {
    const ended = new Promise((resolve) => this.#child.once('exit', resolve));
    process.kill(-this.#child.pid!, 'SIGTERM');
    await ended;
  }
}

async function serves(port: number): Promise<boolean> {
  try {
    return (await fetch(`http://127.0.0.1:${port}/health`)).ok;
  } catch {
    return false; // Nobody listens yet.
  }
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });
}
