/** What goes wrong, and when: agents are killed or their jobs cancelled, and come back a while later. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Stage } from './stage.ts';

export interface DisturbanceOptions {
  stage: Stage;
  /** Time between two losses of a replica. */
  every_ms: number;
  /** A lost replica is deployed again after a time between these. */
  away_ms: readonly [least: number, most: number];
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

/** Takes replicas away, one every `every_ms`, and deploys each again. Resolves when it is over and all came back. */
export async function disturb(options: DisturbanceOptions): Promise<Losses> {
  const { stage, every_ms, away_ms, alive_min, random, log, over } = options;
  const away = new Set<string>();
  const returning: Promise<void>[] = [];
  const losses: Losses = { killed: 0, cancelled: 0 };
  for (let turn = 0; ; turn++) {
    await sleep(every_ms);
    if (over()) break;
    const there = stage.deployments.filter((name) => !away.has(name));
    if (there.length <= alive_min) continue;
    const name = there[Math.floor(random() * there.length)]!;
    const [agent] = await stage.agents(name);
    if (agent === undefined) continue;
    away.add(name);
    if (turn % 2 === 0) {
      process.kill(agent.pid, 'SIGKILL');
      losses.killed++;
      log(`${name}: its agent was killed`);
    } else {
      await stage.cluster.runAs('user', ['scancel', agent.job_id]);
      losses.cancelled++;
      log(`${name}: its job was cancelled`);
    }
    const rest_ms = away_ms[0] + random() * (away_ms[1] - away_ms[0]);
    returning.push(
      sleep(rest_ms).then(async () => {
        await stage.must('deploy', stage.deploymentFile(name), '--yes', '--timeout', '60s');
        away.delete(name);
        log(`${name}: serves again`);
      }),
    );
  }
  await Promise.all(returning);
  return losses;
}
