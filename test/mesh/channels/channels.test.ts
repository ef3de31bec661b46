/** Channels between two members, over TLS on real sockets: what flows, what breaks, and whom that concerns. */
import { once } from 'node:events';
import type { TLSSocket } from 'node:tls';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Channel } from '../../../mesh/channels/channel.ts';
import { window_bytes } from '../../../mesh/channels/channel.ts';
import { channels_max } from '../../../mesh/channels/channel-connection.ts';
import { ChannelSocket } from '../../../mesh/channels/channel-socket.ts';
import { FrameReader, FrameType, head_bytes, writeHead } from '../../../mesh/channels/frame.ts';
import { echo, Heard, Members, type Pair, pattern, sendAll } from './support.ts';

const MiB = 1024 * 1024;
let members: Members;
const open: Pair[] = [];

beforeAll(async () => {
  members = await Members.open();
});
afterAll(async () => {
  for (const { near, far } of open) {
    near.destroy(new Error('the test is over'));
    far.destroy(new Error('the test is over'));
  }
  await members.close();
});

async function pair(onChannel: (channel: Channel) => void): Promise<Pair> {
  const made = await members.pair(onChannel);
  open.push(made);
  return made;
}

function opened({ near }: Pair): { channel: Channel; heard: Heard } {
  const heard = new Heard();
  return { channel: near.open(heard), heard };
}

async function ended(heard: Heard): Promise<void> {
  await expect.poll(() => heard.closings.length, { timeout: 20_000, interval: 5 }).toBe(1);
}

/** That the connection still carries others. */
async function expectWhole(of: Pair): Promise<void> {
  const { channel, heard } = opened(of);
  sendAll(channel, heard, Buffer.from('still here'), 100);
  await ended(heard);
  expect(heard.bytes.toString()).toBe('still here');
  expect(heard.closings).toEqual([undefined]);
}

function frame(kind: number, channel: number, payload = Buffer.alloc(0)): Buffer {
  const bytes = Buffer.alloc(head_bytes + payload.length);
  writeHead(bytes, 0, kind as FrameType, channel, payload.length);
  payload.copy(bytes, head_bytes);
  return bytes;
}

describe('what flows', () => {
  it('of one channel goes out when it is written, of several in one write behind the turn', async () => {
    const both = await pair(echo);
    const { channel, heard } = opened(both);
    await new Promise((resolve) => setImmediate(resolve));
    const written: number[] = [];
    const write = both.nearSocket.write.bind(both.nearSocket);
    both.nearSocket.write = ((bytes: Buffer) => {
      written.push(bytes.length);
      return write(bytes);
    }) as TLSSocket['write'];
    channel.write(Buffer.from('alone'));
    channel.write(Buffer.from('and more'));
    await Promise.resolve();
    expect(written).toEqual([2 * head_bytes + 13]);
    const beside = opened(both);
    await new Promise((resolve) => setImmediate(resolve));
    written.length = 0;
    channel.write(Buffer.from('one'));
    await Promise.resolve();
    beside.channel.write(Buffer.from('two'));
    await Promise.resolve();
    expect(written).toEqual([]);
    await new Promise((resolve) => setImmediate(resolve));
    expect(written).toEqual([2 * head_bytes + 6]);
    for (const each of [channel, beside.channel]) each.end();
    await Promise.all([ended(heard), ended(beside.heard)]);
    expect([heard.bytes.toString(), beside.heard.bytes.toString()]).toEqual(['aloneand moreone', 'two']);
  });

  it('comes back as it was sent on every channel, however it is cut', async () => {
    const both = await pair(echo);
    await fc.assert(
      fc.asyncProperty(
        fc.array(
          fc.record({
            length: fc.nat({ max: 3 * window_bytes }),
            piece: fc.integer({ min: 1, max: 60_000 }),
            seed: fc.nat(),
          }),
          { minLength: 1, maxLength: 8 },
        ),
        async (bodies) => {
          const sent = bodies.map(({ length, piece, seed }) => {
            const bytes = pattern(seed, length);
            const { channel, heard } = opened(both);
            sendAll(channel, heard, bytes, Math.max(piece, length >> 10));
            return { bytes, heard };
          });
          for (const { bytes, heard } of sent) {
            await ended(heard);
            expect(heard.bytes.equals(bytes)).toBe(true);
            expect([heard.ends, heard.closings]).toEqual([1, [undefined]]);
          }
          expect(both.near.size).toBe(0);
          await expect.poll(() => both.far.size).toBe(0);
        },
      ),
      { numRuns: 25 },
    );
  }, 60_000);

  it('is one record for all that is said in one turn', async () => {
    const taken: Channel[] = [];
    const both = await pair((channel) => {
      channel.listen(new Heard());
      taken.push(channel);
    });
    let arrivals = 0;
    const heards = Array.from({ length: 64 }, () => opened(both).heard);
    await expect.poll(() => taken.length).toBe(64);
    const read = both.near.read.bind(both.near);
    both.near.read = (bytes) => {
      arrivals++;
      read(bytes);
    };
    for (let turn = 1; turn <= 10; turn++) {
      for (const channel of taken) channel.write('data: {"token":1}\n\n');
      await expect
        .poll(() => heards.every(({ chunks }) => chunks.length === turn), { interval: 1 })
        .toBe(true);
    }
    expect(arrivals).toBe(10);
  });

  it('goes each way on its own: one side may end and still listen', async () => {
    const heards: Heard[] = [];
    const taken: Channel[] = [];
    const both = await pair((channel) => {
      const heard = new Heard();
      channel.listen(heard);
      heards.push(heard);
      taken.push(channel);
    });
    const { channel, heard } = opened(both);
    channel.write('a question');
    channel.end();
    await expect.poll(() => heards[0]?.ends).toBe(1);
    expect(heards[0]!.bytes.toString()).toBe('a question');
    for (let word = 0; word < 5; word++) {
      taken[0]!.write(`word ${word} `);
      await expect.poll(() => heard.bytes.toString()).toContain(`word ${word}`);
    }
    expect(heard.closings).toEqual([]);
    taken[0]!.end();
    await ended(heard);
    expect([heard.ends, heard.closings, heards[0]!.closings]).toEqual([1, [undefined], [undefined]]);
  });

  it('carries 32 MiB each way while small streams go on beside it', async () => {
    const both = await pair(echo);
    const big = opened(both);
    const bytes = pattern(1, 32 * MiB);
    sendAll(big.channel, big.heard, bytes, 256 * 1024);
    let rounds = 0;
    while (big.heard.closings.length === 0) {
      const { channel, heard } = opened(both);
      sendAll(channel, heard, Buffer.from('a token'), 100);
      await expect.poll(() => heard.closings.length, { timeout: 20_000, interval: 1 }).toBe(1);
      expect(heard.bytes.toString()).toBe('a token');
      rounds++;
    }
    expect(big.heard.bytes.equals(bytes)).toBe(true);
    expect(rounds).toBeGreaterThan(10);
  }, 60_000);

  it('waits for a reader that pauses, in bounded memory, and holds up nobody', async () => {
    const taken: Channel[] = [];
    const sent = { length: 0 };
    const both = await pair((channel) => {
      if (taken.push(channel) > 1) {
        echo(channel);
        return;
      }
      const heard = new Heard();
      channel.listen(heard);
      const flood = (): void => {
        const piece = Buffer.alloc(10_000, 'x');
        do sent.length += piece.length;
        while (channel.write(piece));
      };
      heard.onDrained = flood;
      heard.onData = flood;
    });
    const slow = opened(both);
    slow.channel.write('go');
    slow.channel.pause();
    for (let other = 0; other < 50; other++) await expectWhole(both);
    expect(slow.heard.length).toBe(0);
    // What was sent, and what was handed over and waits at the sender.
    expect(sent.length).toBeLessThanOrEqual(window_bytes + 20_000);
    slow.channel.resume();
    await expect.poll(() => slow.heard.length, { timeout: 10_000 }).toBeGreaterThan(10 * window_bytes);
    slow.channel.reset();
    await expectWhole(both);
  }, 30_000);

  it('past a stream goes at once or not at all, in memory that is filled again, and in its order', async () => {
    let socket: ChannelSocket | undefined;
    const both = await pair((channel) => {
      socket = new ChannelSocket(channel, 'somebody');
      socket.resume();
    });
    const { channel, heard } = opened(both);
    channel.write('go');
    channel.pause();
    await expect.poll(() => socket !== undefined).toBe(true);
    const lent = Buffer.alloc(1000);
    let pieces = 0;
    do lent.fill(pieces % 251);
    while (socket!.sendNow(lent) && ++pieces < 1000);
    // Its reader has not taken what came: no more than a window is on its way.
    expect(pieces).toBe(Math.floor(window_bytes / lent.length));
    expect(socket!.writableLength).toBe(0);
    socket!.write(Buffer.alloc(1000, 252));
    expect(socket!.sendNow(lent)).toBe(false);
    channel.resume();
    await expect.poll(() => heard.length).toBe(1000 * (pieces + 1));
    expect(
      heard.bytes.every((byte, at) => byte === (at < 1000 * pieces ? Math.floor(at / 1000) % 251 : 252)),
    ).toBe(true);
    socket!.destroy();
    expect(socket!.sendNow(lent)).toBe(false);
    await expectWhole(await pair(echo));
  });

  it('bears a reader that pauses, resumes or gives up while it reads', async () => {
    const both = await pair(echo);
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.constantFrom('read', 'pause', 'pause and resume', 'reset'), {
          minLength: 1,
          maxLength: 20,
        }),
        async (acts) => {
          const { channel, heard } = opened(both);
          const bytes = pattern(3, 40_000);
          let at = 0;
          heard.onData = () => {
            const act = acts[at++ % acts.length]!;
            if (act.startsWith('pause')) channel.pause();
            if (act === 'pause and resume') channel.resume();
            if (act === 'pause') setImmediate(() => channel.resume());
            if (act === 'reset' && at > 2) channel.reset();
          };
          sendAll(channel, heard, bytes, 700);
          await expect.poll(() => channel.over, { timeout: 10_000, interval: 1 }).toBe(true);
          expect(heard.bytes.equals(bytes.subarray(0, heard.length))).toBe(true);
          if (heard.closings.length > 0) expect(heard.bytes.equals(bytes)).toBe(true);
        },
      ),
      { numRuns: 40 },
    );
    await expectWhole(both);
  }, 60_000);
});

describe('what is given up', () => {
  it('costs one frame, and its other side learns of it once', async () => {
    const taken: Heard[] = [];
    const both = await pair((channel) => {
      taken.push(echo(channel));
      if (channel.id === 1) channel.write('data');
    });
    const { channel, heard } = opened(both);
    await expect.poll(() => heard.length).toBe(4);
    const before = both.nearSocket.bytesWritten;
    channel.reset();
    channel.reset();
    channel.write('nothing of this');
    channel.end();
    await expect.poll(() => taken[0]!.closings.length).toBe(1);
    expect(taken[0]!.closings[0]?.message).toBe('the other side gave the channel up');
    // The frame, and what TLS puts around a record.
    expect(both.nearSocket.bytesWritten - before).toBeLessThanOrEqual(head_bytes + 22);
    expect(heard.closings).toEqual([]);
    await expectWhole(both);
  });

  it('by the side that was asked ends that one', async () => {
    const both = await pair((channel) => {
      if (channel.id % 2 === 1) {
        channel.listen(new Heard());
        channel.reset('no room here');
      } else echo(channel);
    });
    const one = opened(both);
    await ended(one.heard);
    expect(one.heard.closings[0]?.message).toBe('the other side gave the channel up: no room here');
    await expectWhole(both);
  });

  it('may be 10,000 at once: others are whole, and nothing is left of them', async () => {
    const both = await pair(echo);
    const other = opened(both);
    const bytes = pattern(9, 2 * MiB);
    sendAll(other.channel, other.heard, bytes, 50_000);
    for (let count = 0; count < 10_000; count++) {
      const { channel } = opened(both);
      channel.write('POST / HTTP/1.1\r\n\r\n');
      channel.reset();
    }
    await ended(other.heard);
    expect(other.heard.bytes.equals(bytes)).toBe(true);
    expect(both.near.size).toBe(0);
    await expect.poll(() => both.far.size).toBe(0);
    await expectWhole(both);
  }, 30_000);

  it('is all of them where the connection breaks, each told once', async () => {
    const taken: Heard[] = [];
    const both = await pair((channel) => {
      const heard = new Heard();
      channel.listen(heard);
      taken.push(heard);
    });
    const heards = Array.from({ length: 100 }, () => opened(both).heard);
    await expect.poll(() => taken.length).toBe(100);
    both.farSocket.destroy();
    for (const heard of [...heards, ...taken]) {
      await ended(heard);
      expect(heard.closings[0]).toBeInstanceOf(Error);
    }
    expect([both.near.size, both.far.size, both.near.hasRoom]).toEqual([0, 0, false]);
    expect(() => opened(both)).toThrow();
  });

  it('leaves to its reader what came whole before', async () => {
    const both = await pair((channel) => {
      const heard = new Heard();
      channel.listen(heard);
      channel.write(Buffer.alloc(50_000, 'x'));
      channel.end();
      heard.onDrained = () => setImmediate(() => channel.reset());
    });
    const { channel, heard } = opened(both);
    channel.pause();
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(heard.closings).toEqual([]);
    channel.resume();
    await ended(heard);
    expect([heard.length, heard.ends, heard.closings]).toEqual([50_000, 1, [undefined]]);
  });
});

describe('a peer that breaks the rules', () => {
  /** The near side speaks by hand; frames that come back are listed. */
  async function byHand(
    onChannel: (channel: Channel) => void = (channel) => void echo(channel),
  ): Promise<{ socket: TLSSocket; back: string[]; far: Pair['far'] }> {
    const back: string[] = [];
    const kinds = Object.entries(FrameType);
    const reader = new FrameReader((kind, channel, payload) =>
      back.push(`${kinds.find(([, number]) => number === kind)![0]} ${channel} ${payload}`.trim()),
    );
    const { near, far } = await members.sockets();
    near.on('data', (bytes: Buffer) => reader.push(bytes));
    const taking = members.take(far, onChannel);
    open.push({ near: taking, nearSocket: near, far: taking, farSocket: far });
    return { socket: near, back, far: taking };
  }

  async function expectOthersWhole(socket: TLSSocket, back: string[], id: number): Promise<void> {
    socket.write(Buffer.concat([frame(1, id), frame(2, id, Buffer.from('whole')), frame(3, id)]));
    await expect.poll(() => back).toContain(`end ${id}`);
    expect(back).toContain(`data ${id} whole`);
  }

  it.each([
    [
      'names a channel that was never opened',
      frame(2, 99, Buffer.from('x')),
      'reset 99 the channel was never opened',
    ],
    ['ends one that was never opened', frame(3, 98), 'reset 98 the channel was never opened'],
    [
      'gives credit to the channel 0',
      frame(5, 0, Buffer.from([0, 0, 0, 1])),
      'reset 0 the channel was never opened',
    ],
  ])('%s: that one is refused', async (_what, bytes, answer) => {
    const { socket, back } = await byHand();
    await expectOthersWhole(socket, back, 1);
    socket.write(bytes);
    await expect.poll(() => back).toContain(answer);
    await expectOthersWhole(socket, back, 2);
  });

  it('uses a number twice: that channel ends, open or not', async () => {
    const heards: Heard[] = [];
    const { socket, back } = await byHand((channel) => void heards.push(echo(channel)));
    socket.write(Buffer.concat([frame(1, 1), frame(1, 5), frame(2, 5, Buffer.from('x'))]));
    await expect.poll(() => back).toContain('data 5 x');
    socket.write(frame(1, 5));
    await expect.poll(() => back).toContain('reset 5 the channel was opened twice');
    expect(heards[1]!.closings[0]?.message).toBe('the channel was opened twice');
    socket.write(Buffer.concat([frame(1, 5), frame(1, 3)]));
    await expect.poll(() => back).toContain('reset 3 the channel was opened twice, or after a later one');
    expect(heards[0]!.closings).toEqual([]);
    await expectOthersWhole(socket, back, 6);
  });

  it('sends more than a window: that channel ends alone, and holds no more than the window', async () => {
    const slow = new Heard();
    const { socket, back } = await byHand((channel) => {
      if (channel.id > 1) echo(channel);
      else {
        channel.listen(slow);
        channel.pause();
      }
    });
    socket.write(frame(1, 1));
    for (let sent = 0; sent < window_bytes; sent += 16_384) socket.write(frame(2, 1, Buffer.alloc(16_384)));
    await expectOthersWhole(socket, back, 2);
    expect(back.filter((one) => one.startsWith('reset'))).toEqual([]);
    socket.write(frame(2, 1, Buffer.from('x')));
    await expect.poll(() => back).toContain('reset 1 more bytes came on the channel than were asked for');
    expect([slow.length, slow.closings.length]).toEqual([0, 1]);
    socket.write(frame(2, 1, Buffer.from('late')));
    await expectOthersWhole(socket, back, 3);
  });

  it.each([
    [
      'gives more credit than was used',
      frame(5, 1, Buffer.from([0, 0, 0, 1])),
      'more credit came than was used',
    ],
    ['gives credit of three bytes', frame(5, 1, Buffer.from([0, 0, 1])), 'credit has four bytes'],
    [
      'goes on behind its end',
      Buffer.concat([frame(3, 1), frame(2, 1, Buffer.from('x'))]),
      'bytes came behind the end of the channel',
    ],
  ])('%s: that channel ends', async (_what, bytes, reason) => {
    const { socket, back } = await byHand((channel) => {
      if (channel.id > 1) echo(channel);
      else channel.listen(new Heard());
    });
    socket.write(frame(1, 1));
    socket.write(bytes);
    await expect.poll(() => back).toContain(`reset 1 ${reason}`);
    await expectOthersWhole(socket, back, 2);
  });

  it('opens more than it may: those are refused', async () => {
    const { socket, back, far } = await byHand((channel) => channel.listen(new Heard()));
    for (let id = 1; id <= channels_max + 50; id++) socket.write(frame(1, id));
    await expect.poll(() => back.length).toBe(50);
    expect(back[0]).toBe(`reset ${channels_max + 1} the connection has as many channels as it may`);
    expect(far.size).toBe(channels_max);
  });

  it('speaks no frames: the connection ends', async () => {
    const heard = new Heard();
    const { socket } = await byHand((channel) => channel.listen(heard));
    socket.write(Buffer.concat([frame(1, 1), Buffer.from('GET / HTTP/1.1\r\n\r\n')]));
    await once(socket, 'close');
    expect(heard.closings).toHaveLength(1);
  });

  it('cuts a frame in the middle and goes: what was whole was read', async () => {
    const heard = new Heard();
    const { socket } = await byHand((channel) => channel.listen(heard));
    const cut = frame(2, 1, Buffer.from('never whole')).subarray(0, 12);
    socket.end(Buffer.concat([frame(1, 1), frame(2, 1, Buffer.from('whole')), cut]));
    await ended(heard);
    expect(heard.bytes.toString()).toBe('whole');
    expect([heard.ends, heard.closings[0]?.message]).toEqual([0, 'the connection was closed']);
  });

  it('makes this side say much and reads nothing of it: the connection ends, in bounded memory', async () => {
    const { socket, far } = await byHand();
    socket.pause();
    const stranger = Buffer.concat(
      Array.from({ length: 1000 }, (_, at) => frame(2, 1000 + at, Buffer.from('x'))),
    );
    const closed = new Promise((resolve) => socket.once('close', resolve));
    let most = 0;
    const flood = (): void => {
      most = Math.max(most, (open.at(-1)!.farSocket as TLSSocket).writableLength);
      while (!socket.destroyed && socket.write(stranger));
    };
    socket.on('drain', flood);
    flood();
    // A paused socket does not see that it was closed: writing to it does.
    const poke = setInterval(flood, 20);
    await closed;
    clearInterval(poke);
    expect(far.hasRoom).toBe(false);
    expect(most).toBeLessThan(6 * MiB);
  }, 30_000);

  it('takes no bytes: what is to be sent to it waits at whoever writes', async () => {
    let written = 0;
    const { socket, far } = await byHand((channel) => {
      const heard = new Heard();
      channel.listen(heard);
      const flood = (): void => {
        do written += 8192;
        while (channel.write(Buffer.alloc(8192)));
      };
      heard.onDrained = flood;
      flood();
    });
    socket.pause();
    const streams = 200;
    for (let id = 1; id <= streams; id++) socket.write(frame(1, id));
    await expect.poll(() => far.size).toBe(streams);
    expect(written).toBeLessThan(streams * (window_bytes + 2 * 8192));
    const { farSocket } = open.at(-1)!;
    await expect.poll(() => farSocket.writableLength).toBeLessThan(400 * 1024);
  });

  it('may open nothing at the side that made the connection', async () => {
    const { near, far } = await members.sockets();
    const back: Buffer[] = [];
    const both = members.take(near, undefined as never);
    open.push({ near: both, nearSocket: near, far: both, farSocket: far });
    far.on('data', (bytes: Buffer) => back.push(bytes));
    far.write(frame(1, 4));
    await expect.poll(() => Buffer.concat(back).toString('latin1')).toContain('this side takes no channels');
    expect(both.hasRoom).toBe(true);
  });
});
