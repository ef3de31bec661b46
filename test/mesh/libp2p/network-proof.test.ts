/** Connections from outside that do not have the network key: they cost little, end soon, and keep no member out. */
import { once } from 'node:events';
import { connect } from 'node:net';
import type { MultiaddrConnection } from '@libp2p/interface';
import { multiaddrConnectionPair } from '@libp2p/utils';
import { afterEach, describe, expect, it } from 'vitest';
import { Libp2pTransport } from '../../../mesh/libp2p/libp2p-transport.ts';
import { NetworkProof } from '../../../mesh/libp2p/network-proof.ts';
import { SessionTable } from '../../../mesh/session-table.ts';
import { eventually } from '../support.ts';

const key = new Uint8Array(32).fill(9);
const closing: (() => Promise<unknown>)[] = [];

afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function node(listen: string[] = ['/ip4/127.0.0.1/tcp/0']): Promise<Libp2pTransport> {
  const transport = await Libp2pTransport.start({
    network_key: key,
    table: new SessionTable(),
    listen,
    relays: false,
    addressesOf: () => [],
  });
  closing.push(() => transport.close());
  return transport;
}

const portOf = (transport: Libp2pTransport): number => Number(transport.addresses()[0]!.split('/').at(-1));

/** As one that tries the door: 24 bytes, 40 more, and away. */
async function knock(port: number): Promise<void> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => undefined); // it may be shown out first
  socket.resume();
  await once(socket, 'connect');
  socket.write(Buffer.alloc(24, 1));
  socket.end(Buffer.alloc(40, 2));
  await new Promise((resolve) => socket.once('close', resolve));
}

describe('strangers', () => {
  it('come 6,000 times and end no process; members get in meanwhile and after, and are heard', async () => {
    const listener = await node();
    const port = portOf(listener);
    let left = 6000;
    const knocking = Array.from({ length: 64 }, async () => {
      while (left-- > 0) await knock(port);
    });
    const during = await node([]);
    await during.dial(`/ip4/127.0.0.1/tcp/${port}`);
    expect(left).toBeGreaterThan(0);
    await Promise.all(knocking);
    await eventually(() => listener.counters().rejected.foreign_key === 6000, 'each is counted');

    const after = await node([]);
    await after.dial(`/ip4/127.0.0.1/tcp/${port}`);
    const heard = new Promise<string>((resolve) => {
      const deaf = { announcement: () => false, lost: () => undefined };
      listener.listen({ ...deaf, message: (from) => resolve(from) });
    });
    after.send(listener.self, { kind: 'probe', nonce: 1 });
    expect(await heard).toBe(after.self);
  }, 60_000);

  it('who hold as many connections as there may be keep no member out', async () => {
    const listener = await node();
    const port = portOf(listener);
    const silent = Array.from({ length: 700 }, () => connect(port, '127.0.0.1').on('error', () => undefined));
    closing.push(async () => {
      for (const socket of silent) socket.destroy();
    });
    await Promise.all(silent.map((socket) => once(socket, 'connect')));
    await eventually(() => listener.counters().rejected.foreign_key! > 0, 'the oldest end');
    const member = await node([]);
    const began_ms = performance.now();
    await member.dial(`/ip4/127.0.0.1/tcp/${port}`);
    expect(performance.now() - began_ms).toBeLessThan(2000);
    await eventually(() => listener.peers().includes(member.self), 'the member is in');
    // None of them is closed by its own side: it is the time for a proof that is over.
    await eventually(() => listener.counters().rejected.foreign_key === 700, 'the last end', 10_000);
  }, 30_000);
});

describe('the first bytes of a connection', () => {
  const proof = (of = key, unauthenticated_max = 4): NetworkProof =>
    new NetworkProof({ key: of, onUnauthenticated: () => undefined, unauthenticated_max });

  it('let large messages through, whole and in order', async () => {
    const [dialed, listening] = multiaddrConnectionPair({ capacity: 8 * 1024 * 1024 });
    const [one, other] = await Promise.all([proof().protect(dialed), proof().protect(listening)]);
    const sent = Buffer.alloc(2 * 1024 * 1024 + 7, 'some text that repeats');
    let received = Buffer.alloc(0);
    other.addEventListener('message', ({ data }) => {
      received = Buffer.concat([received, data.subarray()]);
    });
    one.send(sent.subarray(0, 5));
    one.send(sent.subarray(5));
    await eventually(() => received.length === sent.length, 'all of it');
    expect(received.equals(sent)).toBe(true);
  });

  it('show no text, and are never twice the same', async () => {
    const seen: Buffer[] = [];
    for (let turn = 0; turn < 2; turn++) {
      const [dialed, listening] = multiaddrConnectionPair();
      const all: Uint8Array[] = [];
      const other = proof().protect(listening);
      listening.addEventListener('message', ({ data }) => all.push(data.slice()));
      const one = await proof().protect(dialed);
      await other;
      one.send(Buffer.from('a text that nobody reads'));
      await eventually(() => Buffer.concat(all).length === 24 + 32 + 24, 'the bytes on the way');
      seen.push(Buffer.concat(all));
    }
    expect(seen.join()).not.toContain('text');
    expect(seen[0]!.subarray(56).equals(seen[1]!.subarray(56))).toBe(false);
  });

  it('let nobody in with another key, nor with what the other end said itself', async () => {
    const [dialed, listening] = multiaddrConnectionPair();
    const foreign = proof(new Uint8Array(32).fill(1));
    const both = await Promise.allSettled([foreign.protect(dialed), proof().protect(listening)]);
    expect(both.map(({ status }) => status)).toEqual(['rejected', 'rejected']);

    const [mirror, door] = multiaddrConnectionPair();
    mirror.addEventListener('message', ({ data }) => mirror.send(data));
    await expect(proof().protect(door)).rejects.toThrow('network key');
  });

  it('are waited for by so many at a time: the oldest ends first, and members count no more', async () => {
    let ended = 0;
    const counting = new NetworkProof({ key, onUnauthenticated: () => ended++, unauthenticated_max: 2 });
    const come = (): Record<'dialed' | 'listening', MultiaddrConnection> & { done: Promise<unknown> } => {
      const [dialed, listening] = multiaddrConnectionPair();
      return { dialed, listening, done: counting.protect(listening).catch((error: Error) => error) };
    };
    const member = come();
    await proof().protect(member.dialed);
    await member.done;
    const strangers = [come(), come(), come()];
    expect(await strangers[0]!.done).toBeInstanceOf(Error);
    expect([ended, strangers[1]!.listening.status, member.listening.status]).toEqual([1, 'open', 'open']);
    for (const { dialed } of strangers) dialed.abort(new Error('away'));
    await eventually(() => ended === 3, 'all are counted');
  });
});
