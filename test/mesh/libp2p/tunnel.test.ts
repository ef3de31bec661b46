/** Ways to sessions that cannot be reached directly, with real connections over loopback. */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, writeFile } from 'node:fs/promises';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import { finished } from 'node:stream/promises';
import { multiaddr } from '@multiformats/multiaddr';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { LocalSession, MeshPeer, RendezvousRegistry } from '../../../mesh/index.ts';
import { createNode } from '../../../mesh/libp2p/libp2p-node.ts';
import { eventually, metadata, scratchFolder } from '../support.ts';

const key = new Uint8Array(32).fill(5);
const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

interface Member {
  registry: RendezvousRegistry;
  peer: MeshPeer;
  session: LocalSession;
}

async function member(options: {
  listens?: boolean;
  relays?: boolean;
  bootstrap?: string[];
  relay?: string[];
  target?: number;
}): Promise<Member> {
  const scratch = await scratchFolder();
  closing.push(async () => scratch[Symbol.asyncDispose]());
  const folder = join(scratch.path, 'mesh');
  await mkdir(folder, { mode: 0o700 });
  await writeFile(join(folder, 'network.key'), key, { mode: 0o600 });
  const registry = await RendezvousRegistry.open(folder, { create: true, poll_ms: 50 });
  let own: LocalSession | undefined;
  const { target } = options;
  const peer = await MeshPeer.join(registry, {
    ...(options.listens === false ? {} : { listen: { host: '127.0.0.1', ports: [0, 0] as const } }),
    announce: ['127.0.0.1'],
    bootstrap: options.bootstrap ?? [],
    relay: options.relay ?? [],
    relays: options.relays === true,
    ...(target === undefined
      ? {}
      : {
          tunnelTarget: (id: string) => (id === own?.id ? { host: '127.0.0.1', port: target } : undefined),
        }),
    onTrouble: (message) => {
      throw new Error(message);
    },
  });
  const session = await LocalSession.join(registry, metadata);
  own = session;
  await session.update({ lifecycle: 'SERVING' });
  closing.push(async () => {
    await registry.close();
    await peer.close();
  });
  return { registry, peer, session };
}

const addressOf = ({ registry }: Member): string =>
  registry.peer!.addresses[0]!.replace(/^\/ip4\/(.*)\/tcp\//, '$1:');

/** Sends back what it gets; counts what it got. */
let server: Server;
let port: number;
let accepted: Socket[];
let echoes: boolean;

beforeEach(async () => {
  accepted = [];
  echoes = true;
  server = createServer((socket) => {
    accepted.push(socket);
    socket.on('error', () => undefined);
    if (echoes) socket.pipe(socket);
    else socket.pause();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  ({ port } = server.address() as AddressInfo);
  closing.push(async () => {
    for (const socket of accepted) socket.destroy();
    server.close();
  });
});

/** The one that is reached by `from`, as its record says. */
async function recordAt(from: Member, of: Member) {
  return await eventually(() => {
    const record = from.registry.get(of.session.id);
    return record?.lifecycle === 'SERVING' && record.metadata.peer ? record : undefined;
  }, 'the record');
}

async function exchange(from: Member, to: Member, bytes: number): Promise<void> {
  const tunnel = await from.peer.tunnel(await recordAt(from, to));
  const sent = randomBytes(bytes);
  const received: Buffer[] = [];
  tunnel.on('data', (chunk: Buffer) => received.push(chunk));
  tunnel.end(sent);
  await once(tunnel, 'end');
  expect(Buffer.concat(received).equals(sent)).toBe(true);
}

describe('a tunnel', () => {
  test('leads to the port of a session, byte for byte', async () => {
    const a = await member({ target: port });
    const b = await member({ bootstrap: [addressOf(a)] });
    await exchange(b, a, 3_000_000);
  });

  test('holds the writer back where nobody reads', async () => {
    echoes = false;
    const a = await member({ target: port });
    const b = await member({ bootstrap: [addressOf(a)] });
    const tunnel = await b.peer.tunnel(await recordAt(b, a));
    tunnel.on('error', () => undefined);
    const chunk = Buffer.alloc(64 * 1024);
    let written = 0;
    // Until a second passes in which nothing more is taken.
    for (let taken = true; taken; ) {
      taken = await new Promise<boolean>((resolve) => {
        const timer = setTimeout(() => resolve(false), 1000);
        tunnel.write(chunk, () => {
          clearTimeout(timer);
          resolve(true);
        });
      });
      if (taken) written += chunk.length;
      expect(written).toBeLessThan(64 * 1024 * 1024);
    }
    // The rest comes when it is read.
    const before = written;
    let read = 0;
    await eventually(() => accepted[0], 'the connection');
    accepted[0]!.on('data', (data: Buffer) => {
      read += data.length;
    });
    accepted[0]!.resume();
    await eventually(() => read > before, 'all that was written');
    tunnel.destroy();
  });

  test('is read to the end, though the session closed long before', async () => {
    const said = randomBytes(700_000); // more than is under way before anybody reads
    server.removeAllListeners('connection');
    server.on('connection', (socket) => {
      accepted.push(socket);
      socket.on('error', () => undefined);
      socket.resume();
      socket.end(said);
    });
    const a = await member({ target: port });
    const b = await member({ bootstrap: [addressOf(a)] });
    const tunnel = await b.peer.tunnel(await recordAt(b, a));
    tunnel.end();
    await eventually(() => accepted[0]?.closed, 'the session to have said all and closed');
    const received: Buffer[] = [];
    tunnel.on('data', (chunk: Buffer) => received.push(chunk));
    await once(tunnel, 'end');
    expect(Buffer.concat(received).equals(said)).toBe(true);
  });

  test('ends with an error where the session broke off', async () => {
    server.removeAllListeners('connection');
    server.on('connection', (socket) => {
      accepted.push(socket);
      socket.on('error', () => undefined);
      socket.write('some of it', () => socket.resetAndDestroy());
    });
    const a = await member({ target: port });
    const b = await member({ bootstrap: [addressOf(a)] });
    const tunnel = await b.peer.tunnel(await recordAt(b, a));
    tunnel.resume();
    await expect(finished(tunnel)).rejects.toThrow();
  });

  test('that is given up while bytes come in ends, and the process goes on', async () => {
    const a = await member({ target: port });
    const b = await member({ bootstrap: [addressOf(a)] });
    const record = await recordAt(b, a);
    for (let count = 0; count < 3; count++) {
      const tunnel = await b.peer.tunnel(record);
      tunnel.on('error', () => undefined);
      tunnel.on('data', () => tunnel.destroy());
      tunnel.write(randomBytes(500_000));
      await once(tunnel, 'close');
    }
    await exchange(b, a, 1000);
  });

  test('to a session that is not there ends', async () => {
    const a = await member({ target: port });
    const b = await member({ bootstrap: [addressOf(a)] });
    const record = await recordAt(b, a);
    const tunnel = await b.peer.tunnel({ ...record, session_id: 'f'.repeat(32) });
    tunnel.resume();
    await expect(finished(tunnel)).rejects.toThrow();
    expect(accepted).toHaveLength(0);
  });
});

describe('a relay', () => {
  test('carries connections to a member that listens nowhere, without libp2p’s own limits of size and time', async () => {
    const relay = await member({ relays: true });
    const at = [addressOf(relay)];
    const hidden = await member({ listens: false, relay: at, bootstrap: at, target: port });
    const other = await member({ bootstrap: at });
    const record = await recordAt(other, hidden);
    const { addresses } = record.metadata.peer!;
    expect(addresses.every((address) => address.endsWith('/p2p-circuit'))).toBe(true);
    // 128 KiB is where libp2p's relays end a connection unless told otherwise.
    await exchange(other, hidden, 2_000_000);
    await exchange(relay, hidden, 500_000);
    await eventually(
      () =>
        relay.peer.sessionStatus(hidden.session.id).heard_ms_ago !== undefined &&
        other.peer.status().members === 3,
      'signs of life',
    );
    // Two minutes is where they end it otherwise: a relay tells both ends what it allows.
    const node = await createNode({
      network_key: key,
      listen: [],
      relays: false,
      onUnauthenticated: () => undefined,
    });
    closing.push(async () => node.stop());
    const circuit = multiaddr(`${addresses[0]}/p2p/${record.metadata.peer!.id}`);
    const connection = await eventually(() => node.dial(circuit).catch(() => undefined), 'a connection');
    expect(connection.remoteAddr.toString()).toContain('/p2p-circuit');
    expect(connection.limits).toBeUndefined();
  });
});
