import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { gatewayFolderOf } from '../../spec/gateway-folders.ts';
import { type GatewayEndpoint, gatewayFiles, stateLayout } from '../../spec/state-layout.ts';
import type { Door } from './clients.ts';
import { model, type Stage } from './stage.ts';

/** How long a gateway may take until it answers again after it was killed, ms: the keeper starts it. */
const back_ms = 90_000;

/** The two gateways of the run: asked, killed in turn, and seen to come back. */
export class Gateways {
  readonly doors: Door[];
  readonly key: string;
  readonly #stage: Stage;

  static async open(stage: Stage): Promise<Gateways> {
    const last = (await stage.must('deploy', '--yes', stage.deploymentFile(stage.deployments[0]!), '--json'))
      .trim()
      .split('\n')
      .at(-1)!;
    const { url, key } = JSON.parse(last) as { url: string; key: string };
    const second = JSON.parse(await stage.must('gateway', 'start', '--json')) as { url: string };
    const gateways = new Gateways(stage, [url, second.url], key);
    for (const number of [1, 2]) await gateways.#untilServing(number, stage.options.replicas);
    return gateways;
  }

  private constructor(stage: Stage, urls: readonly string[], key: string) {
    this.#stage = stage;
    this.doors = urls.map((url) => ({ url, killed: 0 }));
    this.key = key;
  }

  /** Replicas that answer, as a gateway that lives sees them; undefined where none answers. */
  async serving(): Promise<number | undefined> {
    for (const number of [1, 2]) {
      const count = await this.#servingAt(number);
      if (count !== undefined) return count;
    }
    return undefined;
  }

  /** Kills the gateways in turn, each only while the other answers. @returns how often */
  async disturb(every_ms: number, over: () => boolean, log: (line: string) => void): Promise<number> {
    let kills = 0;
    for (let number = 2; ; number = 3 - number) {
      const next_ms = performance.now() + every_ms;
      while (performance.now() < next_ms && !over()) await sleep(250);
      if (over()) return kills;
      if ((await this.#servingAt(3 - number)) === undefined) continue;
      const door = this.doors[number - 1]!;
      const { pid } = this.#endpoint(number);
      door.killed++;
      process.kill(pid, 'SIGKILL');
      kills++;
      log(`gateway ${number} was killed`);
      await this.#untilServing(number, 1);
      // Even: what fails from here on failed through a gateway that lives.
      door.killed++;
      log(`gateway ${number} answers again`);
    }
  }

  async #untilServing(number: number, replicas: number): Promise<void> {
    const deadline_ms = performance.now() + back_ms;
    while (((await this.#servingAt(number)) ?? 0) < replicas) {
      if (performance.now() > deadline_ms)
        throw new Error(`gateway ${number} does not see ${replicas} replicas within ${back_ms / 1000} s`);
      await sleep(200);
    }
  }

  async #servingAt(number: number): Promise<number | undefined> {
    try {
      const token = readFileSync(join(this.#folder(number), gatewayFiles.admin_token), 'utf8').trim();
      const answer = await fetch(`${this.#endpoint(number).url}/hpcserve/v1/table`, {
        headers: { authorization: `Bearer ${token}` },
        signal: AbortSignal.timeout(2000),
      });
      const { sessions } = (await answer.json()) as {
        sessions: { reachable: boolean; lifecycle: string; models: { name: string; state: string }[] }[];
      };
      return sessions.filter(
        ({ reachable, lifecycle, models }) =>
          reachable &&
          lifecycle === 'SERVING' &&
          models.some(({ name, state }) => name === model && state === 'serving'),
      ).length;
    } catch (error) {
      // It is away: refused, or its files are being written.
      if (error instanceof Error) return undefined;
      throw error;
    }
  }

  #endpoint(number: number): GatewayEndpoint {
    return JSON.parse(
      readFileSync(join(this.#folder(number), gatewayFiles.endpoint), 'utf8'),
    ) as GatewayEndpoint;
  }

  #folder(number: number): string {
    return gatewayFolderOf(stateLayout(join(this.#stage.folder, '.hpcserve'), 'chaos').root, number);
  }
}
