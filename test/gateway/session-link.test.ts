/** The way to one session: since when it is not heard, by which requests are judged whose connection broke. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { SessionLink } from '../../gateway/session-link.ts';
import { LocalSession, RelayFallback, RendezvousRegistry } from '../../mesh/index.ts';
import { json, TestSession, until } from './support.ts';

let folder: string;
let registry: RendezvousRegistry;
let session: TestSession;
let link: SessionLink;
let heartbeats: number;
let losses: number;

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-link-'));
  registry = await RendezvousRegistry.open(join(folder, 'mesh'), { create: true, poll_ms: 50 });
  session = await TestSession.start(registry, json({}));
  const { metadata } = session.own.record;
  const own = await LocalSession.join(registry, { ...metadata, role: 'gateway', models: [], addresses: [] });
  heartbeats = 0;
  losses = 0;
  const relayFallback = new RelayFallback(() => Promise.reject(new Error('nobody relays')));
  link = new SessionLink(registry.get(session.own.id)!, own.identity, relayFallback, {
    up: () => undefined,
    down: () => losses++,
    heartbeat: () => heartbeats++,
  });
});
afterEach(async () => {
  await link.close();
  await session.kill();
  await registry.close();
  rmSync(folder, { recursive: true, force: true });
});

/** Whether a heartbeat is overdue. */
const isUnheard = (): boolean => link.requests.unheard_since_ms <= performance.now();

it('is a time to come while heartbeats come, and passes before the session is given up', async () => {
  expect(isUnheard()).toBe(true);
  // From the second one on it is known how often they come.
  await until(() => heartbeats > 2, 'heartbeats');
  expect(isUnheard()).toBe(false);
  session.fallSilent();
  await until(isUnheard, 'a heartbeat to be overdue');
  expect(losses).toBe(0);
  await until(() => losses > 0, 'it to be given up');
  expect(isUnheard()).toBe(true);
});

it('is the moment in which the session was lost', async () => {
  await until(() => heartbeats > 2, 'heartbeats');
  await session.kill();
  await until(() => losses > 0, 'its loss to be seen');
  expect(isUnheard()).toBe(true);
});
