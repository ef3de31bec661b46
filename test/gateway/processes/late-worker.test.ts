/** A worker that is being started while others answer. */
import { afterEach, expect, it } from 'vitest';
import { type GatewayProcesses, gatewayProcessesSchema } from '../../../spec/gateway-processes.ts';
import { until } from '../support.ts';
import { GatewayOfWorkers, type TestClient } from './gateway-of-workers.ts';

let gateway: GatewayOfWorkers | undefined;
afterEach(async () => {
  await gateway?.close();
  gateway = undefined;
});

async function workers(): Promise<GatewayProcesses['workers']> {
  const { process, endpoint } = gateway!;
  const answer = await process.admin(endpoint, '/hpcserve/v1/processes');
  return gatewayProcessesSchema.parse(await answer.json()).workers;
}

/** Kills workers until one that takes the place of another is stopped before it is ready. @returns its pid */
async function stopOneThatStarts(): Promise<number> {
  for (;;) {
    const before = gateway!.workers();
    process.kill(before[0]!, 'SIGKILL');
    let pid: number | undefined;
    await until(
      () => {
        pid = gateway!.workers().find((one) => !before.includes(one));
        return pid !== undefined;
      },
      'another worker',
      60_000,
    );
    process.kill(pid!, 'SIGSTOP');
    const started = (await workers()).find((worker) => worker.pid === pid);
    if (started?.state === 'starts') return pid!;
    process.kill(pid!, 'SIGCONT');
  }
}

it('keys are changed past it, it is left to start, and it knows of them when it answers', async () => {
  gateway = await GatewayOfWorkers.start(2);
  const { id, key } = await gateway.newKey();
  const pid = await stopOneThatStarts();
  const { key: made } = await gateway.newKey();
  await gateway.admin(`/hpcserve/v1/keys/${id}/block`, 'POST', {});
  expect((await workers()).find((worker) => worker.pid === pid)).toMatchObject({
    state: 'starts',
    connections: 0,
  });
  expect(await gateway.client().ask(made)).toMatchObject({ status: 200 });
  expect(await gateway.client().ask(key)).toMatchObject({ status: 401 });

  process.kill(pid, 'SIGCONT');
  const late = async (): Promise<GatewayProcesses['workers'][number]> =>
    (await workers()).find((worker) => worker.pid === pid)!;
  await until(async () => (await late()).state === 'answers', 'the late worker to answer', 60_000);
  // They are given to the worker that has the fewest, so it has some of them.
  const clients = Array.from({ length: 8 }, () => gateway!.client());
  const letIn = async (client: TestClient): Promise<boolean> => (await client.ask(made)).status === 200;
  for (const client of clients) await until(() => letIn(client), 'an answer', 60_000);
  expect((await late()).connections).toBeGreaterThan(0);
  for (const client of clients) expect(await client.ask(key)).toMatchObject({ status: 401 });
}, 120_000);
