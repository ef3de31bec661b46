/** Workers that are late: with their start, and with changes of keys. */
import { readFileSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';
import { afterEach, expect, it } from 'vitest';
import { type GatewayProcesses, gatewayProcessesSchema } from '../../../spec/gateway-processes.ts';
import { startStage, until } from '../support.ts';
import { GatewayOfWorkers, type TestClient } from './gateway-of-workers.ts';

/** Who has no answer by then is taken to have asked a worker that is stopped. */
const answer_ms = 2000;

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

/** Of a process, the first one first. */
function childrenOf(pid: number): number[] {
  return readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').filter(Boolean).map(Number);
}

function isWorker(pid: number): boolean {
  return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('--worker');
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
    const asked = workers();
    // Where it is ready after all, whoever asks may be given to it, and has no answer before it goes on.
    const told = await Promise.race([asked, setTimeout(answer_ms)]);
    if (told?.find((worker) => worker.pid === pid)?.state === 'starts') return pid!;
    process.kill(pid!, 'SIGCONT');
    await asked;
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

it('is ended and replaced where it never answers, and it is said why', async () => {
  const stage = await startStage({}, { processes: 2 }, { start_limit: { factor: 2, limit_ms_min: 1 } });
  try {
    const said = (words: string): Record<string, unknown>[] =>
      stage.logged.filter((line) => line.includes(words)).map((line) => JSON.parse(line));
    const [first, second] = said('a worker answers');
    const workers = [first, second].map((line) => line!.worker_pid as number);
    process.kill(workers[0]!, 'SIGKILL');
    let hung: number | undefined;
    await until(
      () => {
        hung = childrenOf(process.pid).find((pid) => isWorker(pid) && !workers.includes(pid));
        return hung !== undefined;
      },
      'one in its place',
      60_000,
    );
    process.kill(hung!, 'SIGSTOP');
    await until(() => said('does not answer').length > 0, 'it to be ended', 60_000);
    expect(said('does not answer')[0]).toMatchObject({
      worker: first!.worker,
      because: expect.stringMatching(/^it does not answer [\d.]+ s after its start$/),
    });
    expect(childrenOf(process.pid)).not.toContain(hung);
    const isAnother = ({ worker_pid }: Record<string, unknown>): boolean =>
      worker_pid !== hung && !workers.includes(worker_pid as number);
    await until(() => said('a worker answers').some(isAnother), 'another to answer', 60_000);
  } finally {
    await stage.close();
  }
}, 180_000);

it('is ended where it answers and takes no changed key any more, and it is said why', async () => {
  gateway = await GatewayOfWorkers.start(2);
  const { id } = await gateway.newKey();
  const [stopped] = gateway.workers();
  process.kill(stopped!, 'SIGSTOP');
  // Connections go to the worker that has the fewest: some of these are given to the other one.
  const block = (): Promise<void> => gateway!.admin(`/hpcserve/v1/keys/${id}/block`, 'POST', {});
  await Promise.any(Array.from({ length: 8 }, block));
  expect(gateway.workers()).not.toContain(stopped);
  const ended = 'it has not taken a changed key after 5 s';
  await until(() => gateway!.process.stdout.includes(ended), 'the reason in the log');
}, 120_000);
