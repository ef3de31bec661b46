/** When another node of a launch counts as lost: by the mesh's records of its agent. */
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { untilNodeLost } from '../../../agent/node/node-loss.ts';
import { LocalSession } from '../../../mesh/index.ts';
import { metadata } from '../../mesh/support.ts';
import { Site } from '../support.ts';

const agentOf = (site: Site, node: string): Promise<LocalSession> =>
  LocalSession.join(site.registry, { ...metadata, role: 'node-agent', launch_id: 'l', node });

test('an agent that was there and left, and nothing before; one that comes back at once is not lost', async () => {
  await using site = await Site.open();
  const earlier = await agentOf(site, 'n1');
  await earlier.leave();
  const watching = new AbortController();
  let isLost = false;
  const lost = untilNodeLost(site.registry, { launch_id: 'l', node: 'n1', return_ms: 400 }, watching.signal);
  lost.then(
    () => {
      isLost = true;
    },
    () => undefined,
  );
  const other = await agentOf(site, 'n2');
  await other.leave();
  await delay(600);
  expect(isLost).toBe(false);
  const first = await agentOf(site, 'n1');
  // It finds that others took it for gone, and joins anew.
  await first.leave();
  const second = await agentOf(site, 'n1');
  await delay(600);
  expect(isLost).toBe(false);
  await second.leave();
  await lost;
});

test('a watch that is given up ends with its signal', async () => {
  await using site = await Site.open();
  const watching = new AbortController();
  const lost = untilNodeLost(site.registry, { launch_id: 'l', node: 'n1' }, watching.signal);
  watching.abort(new Error('over'));
  await expect(lost).rejects.toThrow('over');
});
