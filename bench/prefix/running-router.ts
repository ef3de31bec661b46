/** SGLang's router as a process, before servers that only count. */
import { mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import type { CacheAwareSettings } from '../../solver/routing-simulator/other-routers.ts';
import { findProgram } from '../../test/cluster/install.ts';
import { type Pinned, startPinned, untilListening } from '../gateway/process.ts';
import { freePort } from '../gateway/setting.ts';
import { untilAnswered } from '../routers/contenders.ts';
import { type Peer, routerCommand } from '../routers/peers.ts';
import { CountingReplicas } from './counting-replicas.ts';
import type { RouterUnderTest } from './real-router.ts';

const shortRequest = JSON.stringify({
  model: 'bench',
  messages: [{ role: 'user', content: 'hi' }],
  max_tokens: 1,
});

/** Settings as its command line has them. */
export function policyOf(settings: Omit<CacheAwareSettings, 'fallback'>): string[] {
  const { cache_threshold, balance_abs_threshold, balance_rel_threshold } = settings;
  return [
    ...['--policy', 'cache_aware', '--cache-threshold', String(cache_threshold)],
    ...['--balance-abs-threshold', String(balance_abs_threshold)],
    ...['--balance-rel-threshold', String(balance_rel_threshold)],
  ];
}

/** A router and the servers behind it, from its start to its disposal. */
export class RunningRouter implements RouterUnderTest, AsyncDisposable {
  readonly url: string;
  readonly replicas: CountingReplicas;
  readonly #process: Pinned;
  readonly #folder: string;

  private constructor(url: string, replicas: CountingReplicas, process: Pinned, folder: string) {
    this.url = url;
    this.replicas = replicas;
    this.#process = process;
    this.#folder = folder;
  }

  /** @throws Error with the end of its log where it does not start */
  static async start({ name, bin }: Peer, count: number, policy: readonly string[]): Promise<RunningRouter> {
    const replicas = await CountingReplicas.start(count);
    const folder = mkdtempSync(join(tmpdir(), 'hpcserve-prefix-'));
    const [port, metrics_port] = [await freePort(), await freePort()];
    const command = routerCommand(name, bin, { workers: replicas.urls, port, metrics_port, policy });
    const log = join(folder, 'router.log');
    const cores = Array.from({ length: availableParallelism() }, (_, core) => core);
    const output = openSync(log, 'a');
    const router = startPinned(findProgram('taskset')!, cores, command, { cwd: folder, output });
    const running = new RunningRouter(`http://127.0.0.1:${port}`, replicas, router, folder);
    try {
      await untilListening(port, router.child);
      await untilAnswered(`${running.url}/v1/chat/completions`, '', shortRequest);
      return running;
    } catch (error) {
      const said = readFileSync(log, 'utf8').slice(-2000);
      await running[Symbol.asyncDispose]();
      throw new Error(`${name} did not start: ${said}`, { cause: error });
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#process.stop();
    await this.replicas[Symbol.asyncDispose]();
    rmSync(this.#folder, { recursive: true, force: true });
  }
}
