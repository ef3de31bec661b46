/** Node agents as real processes that know each other by gossip alone, or by gossip beside their folder. */
import { once } from 'node:events';
import { describe, expect, it } from 'vitest';
import { MeshPeer, pinnedConnect, RelayFallback, RendezvousRegistry } from '../../../mesh/index.ts';
import type { LaunchSpec } from '../../../spec/launch.ts';
import { eventually } from '../../mesh/support.ts';
import { fixtureUnit, Site } from '../support.ts';

const mesh: NonNullable<LaunchSpec['mesh']> = { bootstrap: [], relay: [] };

/** The gateway of a site's harness takes part in the gossip as a real one does. */
async function speak(site: Site, bootstrap: string[] = []): Promise<AsyncDisposable & { peer: MeshPeer }> {
  const peer = await MeshPeer.join(site.registry, {
    listen: { host: '127.0.0.1', ports: [0, 0] },
    announce: ['127.0.0.1'],
    bootstrap,
    relay: [],
    relays: true,
    onTrouble: () => undefined,
  });
  return { peer, [Symbol.asyncDispose]: () => peer.close() };
}

const portOf = (site: Site): string => site.registry.peer!.addresses[0]!.split('/').at(-1)!;

describe('agents in the gossip', () => {
  it.concurrent('name their peer in their records, send signs of life with load, and serve', async () => {
    await using site = await Site.open();
    await using gateway = await speak(site);
    await site.start([fixtureUnit('m')], { mesh });
    const { session_id } = await site.serving('m');
    await eventually(() => site.registry.get(session_id)?.metadata.peer, 'the peer of the session');
    await eventually(() => gateway.peer.sessionStatus(session_id).load, 'a sign of life with load');
    expect(gateway.peer.sessionStatus(session_id)).toMatchObject({ load: { running: 0, waiting: 0 } });
    expect(gateway.peer.sessionStatus(session_id).sources).toContain('folder');
  });

  it.concurrent('are known at another site, which has no folder in common with theirs', async () => {
    await using site = await Site.open();
    await using other = await Site.open(site.registry.network_key);
    await using gateway = await speak(other);
    await site.start([fixtureUnit('m')], { mesh: { ...mesh, bootstrap: [`127.0.0.1:${portOf(other)}`] } });
    const { session_id } = await site.serving('m');
    const record = await eventually(() => {
      const known = other.registry.get(session_id);
      return known?.lifecycle === 'SERVING' ? known : undefined;
    }, 'the session at the other site');
    expect(gateway.peer.sessionStatus(session_id).sources).toEqual(['gossip']);
    const answer = await other.ask(record, 'hello');
    expect(answer.statusCode).toBe(200);
    await answer.body.dump();
  });

  it.concurrent('are LEFT for all, readers of the folder included, soon after they are killed', async () => {
    await using site = await Site.open();
    await using gateway = await speak(site);
    const agent = await site.start([fixtureUnit('m')], { mesh });
    const { session_id } = await site.serving('m');
    await eventually(
      () => gateway.peer.sessionStatus(session_id).heard_ms_ago !== undefined,
      'a sign of life',
    );
    const evidence = new Promise<string | undefined>((resolve) => {
      site.registry.onChange((changes) => {
        for (const change of changes)
          if (change.session_id === session_id && change.after?.lifecycle === 'LEFT')
            resolve(change.tombstone_evidence);
      });
    });
    const killed_ms = performance.now();
    await agent.kill();
    expect(await evidence).toMatch(/^silent for/);
    // A broken connection is asked about at once; a machine that is busy with other tests gets its time.
    expect(performance.now() - killed_ms).toBeLessThan(6000);
    const reader = await RendezvousRegistry.open(site.mesh_folder, { create: false });
    await eventually(() => reader.get(session_id)?.lifecycle === 'LEFT', 'LEFT in the folder');
    await reader.close();
  });

  it.concurrent('come back under a new session when they were taken for gone while they were stopped', async () => {
    await using site = await Site.open();
    await using gateway = await speak(site);
    const agent = await site.start([fixtureUnit('m')], { mesh });
    const { session_id } = await site.serving('m');
    await eventually(
      () => gateway.peer.sessionStatus(session_id).heard_ms_ago !== undefined,
      'a sign of life',
    );
    agent.process.kill('SIGSTOP');
    await eventually(() => site.registry.get(session_id)?.lifecycle === 'LEFT', 'LEFT');
    agent.process.kill('SIGCONT');
    const again = await site.serving('m');
    expect(again.session_id).not.toBe(session_id);
    expect(again.metadata.peer).toBeDefined();
    const answer = await site.ask(again, 'hello');
    expect(answer.statusCode).toBe(200);
    await answer.body.dump();
  });
});

it('an agent whose port cannot be reached is reached through its peer', async () => {
  await using site = await Site.open();
  await using other = await Site.open(site.registry.network_key);
  await using gateway = await speak(other);
  await site.start([fixtureUnit('m')], {
    mesh: { ...mesh, bootstrap: [`127.0.0.1:${portOf(other)}`] },
    operators: [other.provider.id],
  });
  const { session_id } = await site.serving('m');
  const record = await eventually(() => {
    const known = other.registry.get(session_id);
    return known?.lifecycle === 'SERVING' ? known : undefined;
  }, 'the session at the other site');
  const walled = { ...record, metadata: { ...record.metadata, addresses: [{ host: '127.0.0.1', port: 1 }] } };
  const own = other.gateway.identity;
  await expect(pinnedConnect(walled, own)).rejects.toThrow('cannot be reached');
  const relayFallback = new RelayFallback((to) => gateway.peer.tunnel(to));
  const socket = await pinnedConnect(walled, own, { relayFallback });
  expect(relayFallback.isPreferred(walled)).toBe(true);
  socket.write(`GET /hpcserve/v1/state HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n`);
  const [answer] = (await once(socket, 'data')) as [Buffer];
  expect(answer.toString('latin1')).toContain('HTTP/1.1 200');
  socket.destroy();
});
