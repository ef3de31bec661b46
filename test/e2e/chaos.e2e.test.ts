/** The bench `chaos` at a small size: what it shows at full size has to hold with every change. */
import { expect, it } from 'vitest';
import { type ChaosOutcome, runChaos } from '../../bench/chaos/index.ts';

it('nothing fails and no token differs while agents, jobs and gateways are killed', async () => {
  const log: string[] = [];
  const outcome: ChaosOutcome = await runChaos(
    {
      seconds: 24,
      replicas: 3,
      clients: 5,
      replica_loss_s: 6,
      gateway_loss_s: 9,
      ebb_every_s: 10,
      ebb_s: 5,
    },
    { log: (line) => void log.push(line) },
  );
  expect(outcome.failed, log.join('\n')).toEqual([]);
  expect(outcome.wrong).toEqual([]);
  expect(outcome.answered).toBeGreaterThan(outcome.size.clients);
  expect(outcome.losses.killed + outcome.losses.cancelled).toBeGreaterThanOrEqual(2);
  expect(outcome.gateways_killed).toBeGreaterThanOrEqual(1);
}, 240_000);
