/**
 * What goes wrong, and when: agents are killed or their jobs cancelled, one by one and many at once, and come back
 * later.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Stage } from './stage.ts';

export interface DisturbanceOptions {
  stage: Stage;
  /** Time between two losses of a replica. */
  every_ms: number;
  /** A lost replica is deployed again after a time between these. */
  away_ms: readonly [least: number, most: number];
  /** Half of the replicas go at once, so often, and for so long: what lives changes by as much as can be seen. */
  ebb_every_ms: number;
  ebb_ms: number;
  /** Of the replicas, so many are never lost at the same time. */
  alive_min: number;
  random: () => number;
  log: (line: string) => void;
  over: () => boolean;
}

export interface Losses {
  killed: number;
  cancelled: number;
}

/** Takes replicas away and deploys each again. Resolves when it is over and all came back. */
export async function disturb(options: DisturbanceOptions): Promise<Losses> {
  const disturbance = new Disturbance(options);
  await Promise.all([disturbance.loseOnes(), disturbance.ebb()]);
  await disturbance.allBack();
  return disturbance.losses;
}

class Disturbance {
  readonly losses: Losses = { killed: 0, cancelled: 0 };
  readonly #options: DisturbanceOptions;
  readonly #away = new Set<string>();
  readonly #returning: Promise<void>[] = [];

  constructor(options: DisturbanceOptions) {
    this.#options = options;
  }

  /** One every `every_ms`, by SIGKILL and by scancel in turn. */
  async loseOnes(): Promise<void> {
    const { every_ms, away_ms, alive_min, random } = this.#options;
    for (let turn = 0; await this.#pause(every_ms); turn++) {
      const there = this.#there();
      if (there.length <= alive_min) continue;
      const name = there[Math.floor(random() * there.length)]!;
      const rest_ms = away_ms[0] + random() * (away_ms[1] - away_ms[0]);
      await this.#lose(name, turn % 2 === 0 ? 'kill' : 'cancel', rest_ms);
    }
  }

  /** Half of all every `ebb_every_ms`, for `ebb_ms`, by scancel. */
  async ebb(): Promise<void> {
    const { stage, ebb_every_ms, ebb_ms, alive_min } = this.#options;
    while (await this.#pause(ebb_every_ms)) {
      const there = this.#there();
      const count = Math.min(Math.floor(stage.deployments.length / 2), there.length - alive_min);
      const leaving = there.slice(0, Math.max(0, count));
      await Promise.all(
        leaving.map(async (name) => {
          await this.#lose(name, 'cancel', ebb_ms);
          // Its keeper would submit it again at once.
          await stage.must('stop', name, '--yes');
        }),
      );
    }
  }

  async allBack(): Promise<void> {
    await Promise.all(this.#returning);
  }

  #there(): string[] {
    return this.#options.stage.deployments.filter((name) => !this.#away.has(name));
  }

  async #lose(name: string, how: 'kill' | 'cancel', rest_ms: number): Promise<void> {
    const { stage, log } = this.#options;
    this.#away.add(name);
    const [agent] = await stage.agents(name);
    if (agent === undefined) {
      this.#away.delete(name);
      return;
    }
    if (how === 'kill') {
      process.kill(agent.pid, 'SIGKILL');
      this.losses.killed++;
      log(`${name}: its agent was killed`);
    } else {
      await stage.cluster.runAs('user', ['scancel', agent.job_id]);
      this.losses.cancelled++;
      log(`${name}: its job was cancelled`);
    }
    const returning = this.#comeBack(name, rest_ms);
    returning.catch(() => undefined); // thrown when all are waited for
    this.#returning.push(returning);
  }

  async #comeBack(name: string, rest_ms: number): Promise<void> {
    const { stage, log } = this.#options;
    await sleep(rest_ms);
    // Typed once: gateways that are killed meanwhile, and others that deploy at the same moment, are its own matter.
    await stage.must('deploy', '--yes', stage.deploymentFile(name), '--yes', '--timeout', '60s');
    this.#away.delete(name);
    log(`${name}: serves again`);
  }

  /** @returns false where the run is over */
  async #pause(ms: number): Promise<boolean> {
    const end_ms = performance.now() + ms;
    while (performance.now() < end_ms && !this.#options.over()) await sleep(250);
    return !this.#options.over();
  }
}
