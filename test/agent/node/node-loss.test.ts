/** When another node of a launch counts as lost: by the mesh's records of its agent. */
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { untilNodeLost } from '../../../agent/node/node-loss.ts';
import { LocalSession } from '../../../mesh/index.ts';
import { metadata } from '../../mesh/support.ts';
import { Site } from '../support.ts';

const return_ms = 400;

const agentOf = (site: Site, node: string): Promise<LocalSession> =>
  LocalSession.join(site.registry, { ...metadata, role: 'node-agent', launch_id: 'l', node });

test('an agent that was there and left, and nothing before; one that comes back at once is not lost', async () => {
  await using site = await Site.open();
  const earlier = await agentOf(site, 'n1');
  await earlier.leave();
  const watch = (): { lost: Promise<void>; isLost: boolean } => {
    const node = { launch_id: 'l', node: 'n1', return_ms };
    const watched = { lost: untilNodeLost(site.registry, node, new AbortController().signal), isLost: false };
    void watched.lost.then(() => {
      watched.isLost = true;
    });
    return watched;
  };
  let watched = watch();
  const other = await agentOf(site, 'n2');
  await other.leave();
  await delay(return_ms + 200);
  expect(watched.isLost).toBe(false);
  let agent = await agentOf(site, 'n1');
  for (;;) {
    const left_ms = performance.now();
    // It finds that others took it for gone, and joins anew.
    await agent.leave();
    agent = await agentOf(site, 'n1');
    if (performance.now() - left_ms < return_ms) break;
    // The machine was so slow that it was lost: once more.
    watched = watch();
  }
  await delay(return_ms + 200);
  expect(watched.isLost).toBe(false);
  await agent.leave();
  await watched.lost;
});

test('a watch that is given up ends with its signal', async () => {
  await using site = await Site.open();
  const watching = new AbortController();
  const lost = untilNodeLost(site.registry, { launch_id: 'l', node: 'n1' }, watching.signal);
  watching.abort(new Error('over'));
  await expect(lost).rejects.toThrow('over');
});
