/** A vLLM that nothing of ours is between and its clients: a process group of its own, listening on loopback. */
import { type ChildProcess, spawn } from 'node:child_process';
import { openSync, readFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { readProcessors } from '../../host/processors.ts';
import type { Server } from '../engines/clients.ts';

const ready_s = 600;
/** Of its output, where it ended: a traceback of vLLM and what is above it. */
const error_lines = 60;
const kv_gib = 2;
const key = 'bench';

export interface VllmSetup {
  python: string;
  model_folder: string;
  context_tokens: number;
  /** Of `vllm serve`. */
  args: readonly string[];
  /** Where it runs and logs. */
  folder: string;
  /** Of weights and products. */
  dtype?: 'bfloat16' | 'float32';
  /** What to run it with, such as `ip netns exec NAME`, and its address there. */
  through?: readonly string[];
  host?: string;
  environment?: Readonly<Record<string, string>>;
}

/** One that serves, from `start` to `stop`. */
export class VllmServer {
  readonly server: Server;
  readonly #child: ChildProcess;

  private constructor(url: string, child: ChildProcess) {
    this.server = { url, key };
    this.#child = child;
  }

  /**
   * On all cores that this process may use, which all compute: by default vLLM keeps one of them free for its server.
   * @throws Error: it ended before it served, or took too long; with the end of its output
   */
  static async start(setup: VllmSetup): Promise<VllmServer> {
    const { python, model_folder, context_tokens, args, folder } = setup;
    const { dtype = 'bfloat16', through = [], host = '127.0.0.1' } = setup;
    const port = await freePort();
    const bin = dirname(python);
    const log_file = join(folder, 'vllm.log');
    const output = openSync(log_file, 'w');
    const shape = ['--dtype', dtype, '--max-model-len', String(context_tokens)];
    const listening = ['--host', host, '--port', String(port)];
    const serve = [python, join(bin, 'vllm'), 'serve', model_folder, ...shape, ...args, ...listening];
    const [program, ...argv] = [...through, ...serve];
    const child = spawn(program!, argv, {
      cwd: folder,
      env: {
        ...process.env,
        PATH: `${bin}:${process.env.PATH}`,
        VLLM_API_KEY: key,
        VLLM_CPU_OMP_THREADS_BIND: readProcessors().allowed_cores.join(','),
        VLLM_CPU_KVCACHE_SPACE: String(kv_gib),
        VLLM_NO_USAGE_STATS: '1',
        HF_HUB_OFFLINE: '1',
        ...setup.environment,
      },
      stdio: ['ignore', output, output],
      detached: true,
    });
    const origin = `http://${host}:${port}`;
    const vllm = new VllmServer(`${origin}/v1`, child);
    for (const end_ms = performance.now() + 1000 * ready_s; ; ) {
      if (child.exitCode !== null)
        throw new Error(`vLLM ended with ${child.exitCode}: ${lastLines(log_file)}`);
      if (performance.now() > end_ms) {
        await vllm.stop();
        throw new Error(`vLLM does not serve: ${lastLines(log_file)}`);
      }
      if (await serves(origin)) return vllm;
      await sleep(250);
    }
  }

  /** Of its first process, which started the others. */
  get pid(): number {
    return this.#child.pid!;
  }

  /** Ends it and the processes that it started, which are one group. */
  async stop(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const ended = new Promise((resolve) => this.#child.once('exit', resolve));
    process.kill(-this.#child.pid!, 'SIGTERM');
    await ended;
  }
}

/** Its folder is gone when the error is read. */
function lastLines(log_file: string): string {
  return readFileSync(log_file, 'utf8').split('\n').slice(-error_lines).join('\n');
}

async function serves(origin: string): Promise<boolean> {
  try {
    return (await fetch(`${origin}/health`)).ok;
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
