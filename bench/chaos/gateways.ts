/** The gateways of the run: found, asked, killed and started again. */

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type GatewayEndpoint, gatewayFiles, stateLayout } from '../../spec/state-layout.ts';
import type { Door } from './clients.ts';
import { model, type Stage } from './stage.ts';

export class Gateways {
  readonly doors: Door[];
  readonly key: string;
  readonly #stage: Stage;

  static async open(stage: Stage): Promise<Gateways> {
    const last = (await stage.must('deploy', stage.deploymentFile(stage.deployments[0]!), '--json'))
      .trim()
      .split('\n')
      .at(-1)!;
    const { url, key } = JSON.parse(last) as { url: string; key: string };
    return new Gateways(stage, [{ url, killed: 0 }], key);
  }

  private constructor(stage: Stage, doors: Door[], key: string) {
    this.#stage = stage;
    this.doors = doors;
    this.key = key;
  }

  /** Replicas that answer, as a gateway sees them; undefined where none answers. */
  async serving(): Promise<number | undefined> {
    const folder = stateLayout(join(this.#stage.folder, '.hpcserve'), 'chaos').gateway_folder;
    try {
      const endpoint = JSON.parse(
        readFileSync(join(folder, gatewayFiles.endpoint), 'utf8'),
      ) as GatewayEndpoint;
      const token = readFileSync(join(folder, gatewayFiles.admin_token), 'utf8').trim();
      const answer = await fetch(`${endpoint.url}/hpcserve/v1/table`, {
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
      if (error instanceof Error) return undefined;
      throw error;
    }
  }

  async disturb(every_ms: number, over: () => boolean, _log: (line: string) => void): Promise<number> {
    while (!over()) await sleep(Math.min(1000, every_ms));
    return 0;
  }

  async close(): Promise<void> {}
}
