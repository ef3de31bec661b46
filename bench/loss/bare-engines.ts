/** Two bare vLLM, one of them in a network namespace: what routers of others are put before. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { VllmServer, type VllmSetup } from '../engine/vllm-server.ts';
import type { Namespace } from '../kv-transfer/namespace.ts';
import { computingProcess, killEngine } from './engine-loss.ts';
import type { Loss } from './outcome.ts';
import type { Engines } from './trial.ts';

/** Of a vLLM on a share of a small machine: a core, and 1 GiB for its KV cache. */
export const engineEnvironment = {
  VLLM_CPU_KVCACHE_SPACE: '1',
  VLLM_CPU_OMP_THREADS_BIND: 'nobind',
  OMP_NUM_THREADS: '1',
} as const;
export const context_tokens = 2048;
/** Those of all routers at once. */
const sequences_max = 32;

type Pair<T> = readonly [kept: T, lost: T];

/** Both of them, from `start` to disposal. */
export class BareEngines implements Engines, AsyncDisposable {
  readonly #setups: Pair<VllmSetup>;
  readonly #namespace: Namespace;
  readonly #engines: [kept: VllmServer, lost: VllmServer];
  #stopped: number | undefined;
  #running_before = 0;

  private constructor(setups: Pair<VllmSetup>, namespace: Namespace, engines: Pair<VllmServer>) {
    this.#setups = setups;
    this.#namespace = namespace;
    this.#engines = [...engines];
  }

  static async start(
    { python, model_folder, folder }: Pick<VllmSetup, 'python' | 'model_folder' | 'folder'>,
    namespace: Namespace,
  ): Promise<BareEngines> {
    const setupOf = (name: string, more: Partial<VllmSetup>): VllmSetup => {
      mkdirSync(join(folder, name));
      return {
        python,
        model_folder,
        context_tokens,
        args: [
          ...['--served-model-name', 'tiny', '--enforce-eager', '--max-num-seqs', String(sequences_max)],
          // Of the whole memory, on a machine on which others have some, too.
          ...['--gpu-memory-utilization', '0.1'],
        ],
        folder: join(folder, name),
        dtype: 'float32',
        environment: engineEnvironment,
        ...more,
      };
    };
    const { address, through } = namespace.network;
    const setups = [
      setupOf('kept', {}),
      setupOf('lost', {
        through,
        host: address,
        environment: { ...engineEnvironment, VLLM_HOST_IP: address },
      }),
    ] as const;
    const kept = VllmServer.start(setups[0]);
    const lost = VllmServer.start(setups[1]);
    const started = await Promise.allSettled([kept, lost]);
    const failed = started.find((each) => each.status === 'rejected');
    if (failed) {
      for (const each of started) if (each.status === 'fulfilled') await each.value.stop();
      throw failed.reason;
    }
    return new BareEngines(setups, namespace, [await kept, await lost]);
  }

  /** Without `/v1`. */
  get workers(): string[] {
    return this.#engines.map(({ server }) => new URL(server.url).origin);
  }

  get key(): string {
    return this.#engines[0].server.key;
  }

  /** By what the engine says of itself: systems are asked one after the other. */
  async onLost(): Promise<number> {
    const before = this.#running_before;
    this.#running_before = await this.#running();
    return this.#running_before - before;
  }

  async lose(loss: Loss): Promise<void> {
    this.#running_before = 0;
    const { pid } = this.#engines[1];
    if (loss === 'SIGSTOP') {
      this.#stopped = await computingProcess(pid);
      process.kill(this.#stopped, 'SIGSTOP');
    } else if (loss === 'network cut') this.#namespace.cut();
    else if (loss === 'SIGKILL') await killEngine(pid);
    // What scancel does to a job script that is the engine.
    else if (loss === 'scancel') process.kill(pid, 'SIGTERM');
  }

  async restore(loss: Loss): Promise<void> {
    if (loss === 'SIGSTOP') process.kill(this.#stopped!, 'SIGCONT');
    else if (loss === 'network cut') this.#namespace.mend();
    else if (loss === 'SIGKILL' || loss === 'scancel') {
      await killEngine(this.#engines[1].pid);
      this.#engines[1] = await VllmServer.start(this.#setups[1]);
    }
  }

  async #running(): Promise<number> {
    const text = await (await fetch(`${this.workers[1]}/metrics`)).text();
    const running = /^vllm:num_requests_running\{[^}]*\} ([\d.]+)$/m.exec(text)?.[1];
    if (running === undefined) throw new Error('vLLM does not say how many requests it computes');
    return Number(running);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const engine of this.#engines) await killEngine(engine.pid);
  }
}
