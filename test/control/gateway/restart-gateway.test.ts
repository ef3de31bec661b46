/** A gateway that is gone is brought back for as long as it is meant to be there, and not against who just ended it. */
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { restartGateway } from '../../../control/gateway/gateway.ts';
import { inspectGateway, stopGatewayProcess } from '../../../control/gateway/process.ts';
import { type Operations, openOperations } from '../../../control/runner/operations.ts';
import { site, temporaryStore } from '../support.ts';

let place: ReturnType<typeof temporaryStore>;
let operations: Operations;
beforeEach(() => {
  place = temporaryStore();
  const { layout } = place.store;
  operations = openOperations({
    loaded: { site, path: '/site.yaml', layout, provenance: () => undefined } as Operations['loaded'],
    facts: { user: 'someone', environment: {} },
    command: 'test',
    now_ms: Date.now,
    emit: () => {},
    signal: new AbortController().signal,
  });
  operations.store.prepareSite();
  // As one that was killed leaves it.
  const { pid } = spawnSync('true');
  writeFileSync(
    join(layout.gateway_folder, 'process.json'),
    JSON.stringify({ pid, start_ticks: 1, boot_id: 'of-before' }),
  );
});
afterEach(async () => {
  await stopGatewayProcess(place.store.layout);
  place.dispose();
});

const state = async (): Promise<string> => (await inspectGateway(place.store.layout)).state;

it('one that was killed comes back', async () => {
  expect(await restartGateway(operations, 1)).toMatchObject({ url: expect.stringMatching(/^http/) });
  expect(await state()).toBe('running');
});

it('one that a command is about to end does not', async () => {
  let restarted: ReturnType<typeof restartGateway> | undefined;
  await operations.store.withGatewayLock({ command: 'hpcserve stop', lock_wait_ms: 1_000 }, async () => {
    restarted = restartGateway(operations, 1);
    await stopGatewayProcess(place.store.layout);
  });
  expect(await restarted).toBeUndefined();
  expect(await state()).toBe('not_running');
});
