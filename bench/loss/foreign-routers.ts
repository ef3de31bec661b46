/** Routers of others before two bare vLLM, all at once: each loss is the same moment to all of them. */
import { openSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { findProgram } from '../../test/cluster/install.ts';
import { type Pinned, startPinned, untilListening } from '../gateway/process.ts';
import { freePort } from '../gateway/setting.ts';
import { untilAnswered } from '../routers/contenders.ts';
import { type Peer, routerCommand } from '../routers/peers.ts';
import type { BareEngines } from './bare-engines.ts';
import type { System } from './trial.ts';

const model = 'tiny';
const shortRequest = JSON.stringify({ model, messages: [{ role: 'user', content: 'hi' }], max_tokens: 1 });

/** Those that run, from `start` to their disposal: what one learned of an engine by a loss ends with that loss. */
export class ForeignRouters implements AsyncDisposable {
  readonly systems: System[] = [];
  readonly #routers: Pinned[] = [];

  static async start(peers: readonly Peer[], engines: BareEngines, folder: string): Promise<ForeignRouters> {
    const routers = new ForeignRouters();
    try {
      for (const peer of peers) await routers.#begin(peer, engines, folder);
      return routers;
    } catch (error) {
      await routers[Symbol.asyncDispose]();
      throw error;
    }
  }

  async #begin({ name, bin }: Peer, { workers, key }: BareEngines, folder: string): Promise<void> {
    const [port, metrics_port] = [await freePort(), await freePort()];
    const cores = Array.from({ length: availableParallelism() }, (_, core) => core);
    const command = routerCommand(name, bin, { workers, port, metrics_port, worker_key: key });
    const output = openSync(join(folder, `${name}.log`), 'a');
    const router = startPinned(findProgram('taskset')!, cores, command, { cwd: folder, output });
    this.#routers.push(router);
    await untilListening(port, router.child);
    const url = `http://127.0.0.1:${port}/v1`;
    // As many as there are engines: it knows all of them.
    for (const _ of workers) await untilAnswered(`${url}/chat/completions`, key, shortRequest);
    this.systems.push({ name, endpoint: { url, key, model } });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#routers.map((router) => router.stop()));
  }
}
