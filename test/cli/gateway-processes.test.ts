/** A gateway of several processes, as commands show it. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { until } from '../gateway/support.ts';
import { type Home, type Outcome, temporaryHome } from './support.ts';

let home: Home;
beforeEach(() => {
  home = temporaryHome();
});
afterEach(async () => {
  await hpcserve('gateway', 'stop', '1');
  home.dispose();
});

const hpcserve = (...argv: string[]): Promise<Outcome> =>
  home.run(argv, { env: { HPCSERVE_SITE: 'site.yaml' } });
const site = (gateway: object): void =>
  writeFileSync(join(home.folder, 'site.yaml'), JSON.stringify({ name: 'own', kind: 'local', gateway }));
const listed = async () => JSON.parse((await hpcserve('gateway', 'list', '--json')).stdout).gateways[0];

it('list and status show how many of its workers answer, and which live', async () => {
  site({ processes: 2 });
  const started = await hpcserve('gateway', 'start');
  expect(started.code, started.stderr).toBe(0);
  const { relays } = await listed();
  expect(relays).toMatchObject({
    processes: 2,
    workers: [
      { number: 1, state: 'answers', connections: expect.any(Number) },
      { number: 2, state: 'answers' },
    ],
  });
  expect((await hpcserve('gateway', 'list')).stdout).toContain('2 of 2 workers answer');
  expect((await hpcserve('status')).stdout).toMatch(
    /^gateway of own: running at \S+, 2 of 2 workers answer$/m,
  );
  const status = JSON.parse((await hpcserve('status', '--json')).stdout);
  expect(status.gateway.relays.workers.map(({ pid }: { pid: number }) => pid)).toEqual(
    relays.workers.map(({ pid }: { pid: number }) => pid),
  );

  const [, second] = relays.workers;
  process.kill(second.pid, 'SIGKILL');
  await until(async () => {
    const [, now] = (await listed()).relays.workers;
    return now.state === 'answers' && now.pid !== second.pid;
  }, 'another worker in its place');
}, 120_000);

it('of one that relays by itself there is nothing to tell but that', async () => {
  site({});
  const started = await hpcserve('gateway', 'start');
  expect(started.code, started.stderr).toBe(0);
  expect((await listed()).relays).toEqual({ processes: 1, workers: [] });
  expect((await hpcserve('gateway', 'list')).stdout).toMatch(/running.*itself/);
  expect((await hpcserve('status')).stdout).toMatch(/^gateway of own: running at \S+$/m);
}, 60_000);
