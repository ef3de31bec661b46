import { randomBytes } from 'node:crypto';
import { connect } from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import { joinMemoryPieces, type MemoryPiece, pairPieces } from '../../../native/fabric/memory.ts';
import {
  closeSocket,
  crc32c,
  crc32cPlain,
  frame_header_bytes,
  listenOn,
  Mover,
  shutdownSocket,
  ticket_bytes,
} from '../../../native/fabric/mover.ts';
import { TestMemory } from './support.ts';

const patience = { silence_ms: 2000, limit_ms: 10_000 };
const opened: (() => unknown)[] = [];

afterEach(async () => {
  for (const close of opened.splice(0).reverse()) await close();
});

function memory(mib = 4): TestMemory {
  const made = new TestMemory(mib);
  opened.push(() => made.free());
  return made;
}

function moverFor(of: TestMemory): Mover {
  const mover = new Mover(of);
  opened.push(() => mover.close());
  return mover;
}

/** Two memories, a mover each, and a connection between them. */
async function pair(mib = 4) {
  const from = memory(mib).fill(1);
  const to = memory(mib);
  const [source, target] = [moverFor(from), moverFor(to)];
  const [shown, answer] = [randomBytes(ticket_bytes), randomBytes(ticket_bytes)];
  const { socket, port } = listenOn('127.0.0.1', 0);
  const accepted = target.accept(socket, shown, answer, 2000);
  const out = await source.connect('127.0.0.1', port, shown, answer, 2000);
  const into = await accepted;
  closeSocket(socket);
  opened.push(
    () => closeSocket(out),
    () => closeSocket(into),
  );
  return { from, to, source, target, out, into };
}

const header = (word: number): Uint8Array => new Uint8Array(frame_header_bytes).fill(word);

describe('crc32c', () => {
  it('is that of the standard, by instruction and by table', () => {
    const digits = Buffer.from('123456789');
    expect(crc32c(digits)).toBe(0xe3069283);
    expect(crc32cPlain(digits)).toBe(0xe3069283);
  });

  it('is the same both ways for every length and start, and goes on from a beginning', () => {
    const bytes = randomBytes(40_000);
    for (const length of [0, 1, 7, 8, 4095, 12_287, 12_288, 12_289, 39_000])
      for (const start of [0, 1, 5]) {
        const part = bytes.subarray(start, start + length);
        expect(crc32c(part)).toBe(crc32cPlain(part));
        const middle = Math.floor(length / 3);
        expect(crc32c(part.subarray(middle), crc32c(part.subarray(0, middle)))).toBe(crc32c(part));
      }
  });
});

describe('pieces', () => {
  it('that touch become one, and bytes are paired in order', () => {
    const from = joinMemoryPieces([
      { offset: 0, bytes: 4 },
      { offset: 4, bytes: 4 },
      { offset: 16, bytes: 2 },
    ]);
    expect(from).toEqual([
      { offset: 0, bytes: 8 },
      { offset: 16, bytes: 2 },
    ]);
    expect(
      pairPieces(from, [
        { offset: 100, bytes: 5 },
        { offset: 200, bytes: 5 },
      ]),
    ).toEqual([
      { from: 0, to: 100, bytes: 5 },
      { from: 5, to: 200, bytes: 3 },
      { from: 16, to: 203, bytes: 2 },
    ]);
    expect(() => pairPieces(from, [{ offset: 0, bytes: 3 }])).toThrow(RangeError);
  });
});

describe('a mover', () => {
  it.each([true, false])('brings scattered pieces to their places (sendfile: %s)', async (sendfile) => {
    const { from, to, source, target, out, into } = await pair();
    const pieces: MemoryPiece[] = Array.from({ length: 200 }, (_, at) => ({
      offset: at * 12_345 + 3,
      bytes: 7001,
    }));
    const places: MemoryPiece[] = pieces.map(({ bytes }, at) => ({ offset: (199 - at) * 8000 + 1, bytes }));
    const received = target.receive(into, header(7), places, patience);
    const sent = await source.send(out, header(7), pieces, patience, { sendfile, checksum: true });
    const came = await received;
    expect(came.bytes).toBe(200 * 7001);
    expect(came.checksum).toBe(sent.checksum);
    for (const [at, { offset, bytes }] of pieces.entries()) {
      const place = to.view.subarray(places[at]!.offset, places[at]!.offset + bytes);
      expect(Buffer.compare(place, from.view.subarray(offset, offset + bytes))).toBe(0);
    }
    expect((await target.check(places)).checksum).toBe(sent.checksum);
  });

  it('writes nothing of a frame that is not the one that is expected', async () => {
    const { to, source, target, out, into } = await pair();
    const piece = [{ offset: 0, bytes: 4096 }];
    const received = expect(target.receive(into, header(1), piece, patience)).rejects.toMatchObject({
      code: 'EPROTO',
    });
    await source.send(out, header(2), piece, patience, { sendfile: true, checksum: false });
    await received;
    expect(to.view.subarray(0, 4096).every((byte) => byte === 0)).toBe(true);
  });

  it('gives up a peer that is silent, one that dies, and what is cut off', async () => {
    const { source, target, out, into } = await pair();
    const piece = [{ offset: 0, bytes: 4096 }];
    const impatient = { silence_ms: 50, limit_ms: 1000 };
    await expect(target.receive(into, header(1), piece, impatient)).rejects.toMatchObject({
      code: 'ETIMEDOUT',
    });
    const cut = expect(
      target.receive(into, header(1), [{ offset: 0, bytes: 8192 }], patience),
    ).rejects.toMatchObject({ code: 'ECONNRESET', moved_bytes: 4096 });
    await source.send(out, header(1), piece, patience, { sendfile: false, checksum: false });
    shutdownSocket(out);
    await cut;
    const dead = source.send(out, header(1), piece, patience, { sendfile: true, checksum: false });
    await expect(dead).rejects.toMatchObject({ code: 'EPIPE' });
  });

  it('gives up a peer that reads slowly, at the limit', async () => {
    const { source, out } = await pair(32);
    const whole = [{ offset: 0, bytes: 32 * 1024 * 1024 }];
    const started_ms = performance.now();
    const sent = source.send(
      out,
      header(1),
      whole,
      { silence_ms: 100, limit_ms: 1000 },
      {
        sendfile: true,
        checksum: false,
      },
    );
    await expect(sent).rejects.toMatchObject({ code: 'ETIMEDOUT' });
    expect(performance.now() - started_ms).toBeLessThan(900);
  });

  it('refuses pieces outside its memory, and sendfile without a file', async () => {
    const { source, target, out } = await pair();
    const how = { sendfile: true, checksum: false };
    for (const piece of [
      { offset: -1, bytes: 1 },
      { offset: 0, bytes: 0 },
      { offset: 4 * 1024 * 1024, bytes: 1 },
      { offset: 1, bytes: 4 * 1024 * 1024 },
    ])
      await expect(source.send(out, header(1), [piece], patience, how)).rejects.toMatchObject({
        code: 'EINVAL',
      });
    const { address, bytes } = memory();
    const plain = new Mover({ address, bytes });
    opened.push(() => plain.close());
    const sent = plain.send(out, header(1), [{ offset: 0, bytes: 1 }], patience, how);
    await expect(sent).rejects.toMatchObject({ code: 'EINVAL' });
    await target.close();
    await expect(target.check([])).rejects.toMatchObject({ code: 'ECANCELED' });
  });

  it('ends at once when it is closed, whatever it does', async () => {
    const { target, into } = await pair();
    const waiting = [1, 2].map((word) =>
      target.receive(into, header(word), [{ offset: 0, bytes: 1 }], patience),
    );
    const all = Promise.allSettled(waiting);
    await target.close();
    for (const outcome of await all) expect(outcome).toMatchObject({ reason: { code: 'ECANCELED' } });
  });
});

describe('a meeting', () => {
  it('lets in who has the ticket, among strangers that say nothing, the wrong thing, or go', async () => {
    const [source, target] = [moverFor(memory()), moverFor(memory())];
    const [shown, answer] = [randomBytes(ticket_bytes), randomBytes(ticket_bytes)];
    const { socket, port } = listenOn('127.0.0.1', 0);
    const accepted = target.accept(socket, shown, answer, 3000);
    const strangers = Array.from({ length: 40 }, (_, at) => {
      const stranger = connect({ host: '127.0.0.1', port });
      stranger.on('error', () => undefined);
      if (at % 3 === 0) stranger.write(randomBytes(ticket_bytes));
      if (at % 3 === 1) stranger.write('GET / HTTP/1.1\r\n\r\n');
      return stranger;
    });
    const out = await source.connect('127.0.0.1', port, shown, answer, 2000);
    const into = await accepted;
    for (const stranger of strangers) stranger.destroy();
    for (const one of [out, into, socket]) closeSocket(one);
  });

  it('takes no listener for its peer that does not know the answer, and waits for nobody for ever', async () => {
    const [source, target] = [moverFor(memory()), moverFor(memory())];
    const shown = randomBytes(ticket_bytes);
    const { socket, port } = listenOn('127.0.0.1', 0);
    const accepted = target.accept(socket, shown, randomBytes(ticket_bytes), 2000);
    await expect(
      source.connect('127.0.0.1', port, shown, randomBytes(ticket_bytes), 2000),
    ).rejects.toMatchObject({ code: 'EACCES' });
    closeSocket(await accepted);
    await expect(target.accept(socket, shown, shown, 50)).rejects.toMatchObject({ code: 'ETIMEDOUT' });
    closeSocket(socket);
    await expect(source.connect('127.0.0.1', port, shown, shown, 500)).rejects.toMatchObject({
      code: 'ECONNREFUSED',
    });
    await expect(source.connect('localhost', port, shown, shown, 500)).rejects.toMatchObject({
      code: 'EINVAL',
    });
  });
});
