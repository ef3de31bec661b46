/** Frames by memory that two stages share: what lies there, what goes over the connection, and who may see it. */
import { closeSync, mkdtempSync, openSync, readdirSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { createConnection, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { encodeFrame, encodeJsonFrame, type FrameBytes } from '../../../agent/pipeline/frame.ts';
import { FrameAssembler } from '../../../agent/pipeline/frame-assembler.ts';
import { Ring } from '../../../agent/pipeline/ring.ts';
import type { FromRing } from '../../../agent/pipeline/ring-messages.ts';
import {
  FrameInbox,
  FrameOutbox,
  type Parcel,
  shared_bytes_min,
} from '../../../agent/pipeline/shared-frames.ts';
import { SharedMemory } from '../../../native/memory-map.ts';
import { eventually } from '../../mesh/support.ts';

const mib = 2 ** 20;
const folder = mkdtempSync(join(tmpdir(), 'hpcserve-shared-'));
const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0).reverse()) close();
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Memories of frames that this process has open. */
function memories(): number {
  return readdirSync('/proc/self/fd').filter((descriptor) => {
    try {
      return readlinkSync(`/proc/self/fd/${descriptor}`).includes('hpcserve-frames');
    } catch {
      return false; // that of the folder itself
    }
  }).length;
}

function filled(bytes: number, seed: number): FrameBytes {
  const frame = new Uint8Array(bytes);
  new DataView(frame.buffer).setUint32(0, seed, true);
  frame.fill(seed % 251, 4);
  return frame;
}

describe('a memory of frames', () => {
  const pair = (): [FrameOutbox, FrameInbox] => {
    const outbox = FrameOutbox.open()!;
    const inbox = FrameInbox.open(outbox.told)!;
    outbox.isMapped = true;
    return [outbox, inbox];
  };

  it('gives every frame as it was, whatever their lengths, and overwrites none that was not taken', () => {
    const lengths = fc.integer({ min: shared_bytes_min, max: 12 * mib });
    const steps = fc.array(fc.oneof({ arbitrary: lengths, weight: 2 }, fc.constant('take' as const)), {
      minLength: 15,
      maxLength: 40,
    });
    fc.assert(
      fc.property(steps, (asked) => {
        const [outbox, inbox] = pair();
        const lying: { parcel: Parcel; frame: FrameBytes }[] = [];
        const take = (): void => {
          const next = lying.shift();
          if (!next) return;
          expect(Buffer.compare(inbox.take(next.parcel), next.frame)).toBe(0);
          outbox.taken(next.parcel.end);
        };
        for (const [seed, step] of asked.entries()) {
          if (step === 'take') take();
          else {
            const frame = filled(step, seed);
            const parcel = outbox.put(frame);
            if (parcel) lying.push({ parcel, frame });
            // Where nothing lies, there is room.
            else expect(lying.length).toBeGreaterThan(0);
          }
        }
        while (lying.length > 0) take();
        inbox.close();
        outbox.close();
      }),
      { numRuns: 10 },
    );
  });

  it('takes nothing before it is mapped, no short frames, and none that is larger than it', () => {
    const outbox = FrameOutbox.open()!;
    closing.push(() => outbox.close());
    expect(outbox.put(filled(mib, 1))).toBeUndefined();
    outbox.isMapped = true;
    expect(outbox.put(filled(shared_bytes_min - 1, 1))).toBeUndefined();
    expect(outbox.put(filled(32 * mib, 1))).toBeUndefined();
    expect(outbox.put(filled(mib, 1))).toEqual({ at: 0, bytes: mib, end: mib });
  });

  it('refuses what was never written, and what would lie beyond it', () => {
    const [outbox, inbox] = pair();
    closing.push(
      () => outbox.close(),
      () => inbox.close(),
    );
    const { end } = outbox.put(filled(mib, 1))!;
    outbox.taken(end);
    const saying = (words: RegExp): unknown =>
      expect.objectContaining({ code: 'E_STAGE_FRAME', because: [expect.stringMatching(words)] });
    for (const other of [end + 1, end - 1])
      expect(() => outbox.taken(other)).toThrow(saying(/frames up to \d+ were taken of \d+ bytes/));
    const beyond = { at: 31 * mib, bytes: mib, end: 1 };
    expect(() => inbox.take(beyond)).toThrow(saying(/beyond the memory of frames/));
  });

  it('is none that lies elsewhere, is something else, or has another token', () => {
    const outbox = FrameOutbox.open()!;
    const other = SharedMemory.create('hpcserve-frames', 2 * mib);
    const file = openSync(join(folder, 'file'), 'w+');
    closing.push(
      () => outbox.close(),
      () => other.close(),
      () => closeSync(file),
    );
    writeFileSync(file, new Uint8Array(32 * mib));
    const { told } = outbox;
    expect(FrameInbox.open({ ...told, pid: 2 ** 22 + 1 })).toBeUndefined();
    expect(FrameInbox.open({ ...told, token: '0'.repeat(32) })).toBeUndefined();
    expect(FrameInbox.open({ ...told, descriptor: file })).toBeUndefined();
    // Of a version that has another size.
    expect(FrameInbox.open({ ...told, descriptor: other.descriptor })).toBeUndefined();
  });
});

/** A stage's place, and the frames that came to it. */
function place(listen: string, next: string): { ring: Ring; frames: FrameBytes[]; turns: string[] } {
  const [frames, turns]: [FrameBytes[], string[]] = [[], []];
  const ring = new Ring(listen, next, (message: FromRing) => {
    if (message.type === 'frame') frames.push(message.frame);
    else turns.push(message.type === 'down' ? message.because : message.type);
  });
  closing.push(() => ring.close());
  return { ring, frames, turns };
}

/** What is between a stage and the next one, and counts. */
function counted(listen: string, to: string): { bytes: number } {
  const told = { bytes: 0 };
  const sockets: Socket[] = [];
  const server: Server = createServer((socket) => {
    const onward = createConnection(to);
    sockets.push(socket, onward);
    for (const [end, other] of [
      [socket, onward],
      [onward, socket],
    ] as const) {
      end.on('error', () => end.destroy());
      end.once('close', () => other.destroy());
    }
    socket.on('data', (chunk) => {
      told.bytes += chunk.length;
    });
    socket.pipe(onward);
    onward.pipe(socket);
  });
  server.listen(listen);
  closing.push(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return told;
}

interface Sharing {
  first: ReturnType<typeof place>;
  second: ReturnType<typeof place>;
  /** Over the connection from the first to the second. */
  passed: { bytes: number };
}

/** A ring of two, once frames of the first go to the second by memory. */
async function sharing(...names: [string, string, string]): Promise<Sharing> {
  const [a, b, way] = names.map((name) => join(folder, name)) as [string, string, string];
  const passed = counted(way, b);
  const first = place(a, way);
  const second = place(b, a);
  await eventually(() => first.turns.includes('up') && second.turns.includes('up'), 'a ring');
  // Once the stage behind has mapped it, and the stage before knows.
  await eventually(async () => {
    const [bytes, frames] = [passed.bytes, second.frames.length];
    first.ring.send(frameOf(0, mib));
    await eventually(() => second.frames.length === frames + 1, 'the frame');
    return passed.bytes - bytes < mib;
  }, 'a frame by memory');
  return { first, second, passed };
}

const frameOf = (number: number, floats: number): FrameBytes =>
  encodeFrame(
    { kind: 'batch', epoch: 1, number },
    Buffer.from('{}'),
    new Float32Array(floats).fill(number + 0.5),
  );

describe('two stages of a node', () => {
  it('send long frames by memory and short ones over their connection, in order, and leave nothing behind', async () => {
    const before = memories();
    const { first, second, passed } = await sharing('a', 'b', 'a-to-b');
    expect(memories()).toBe(before + 2);
    const [seen, began] = [passed.bytes, second.frames.length];
    const sent: FrameBytes[] = [];
    for (let number = 1; number <= 40; number++) {
      const frame = frameOf(number, number % 4 === 0 ? 10 : mib / 2);
      sent.push(frame.slice());
      first.ring.send(frame);
      // As many as its pipeline has on its way; what finds no room goes over the connection.
      if (number % 4 === 0) await eventually(() => second.frames.length === began + number, 'they came');
    }
    const came = second.frames.slice(began);
    expect(came.length).toBe(sent.length);
    for (const [index, frame] of came.entries())
      expect(Buffer.compare(frame, sent[index]!), `frame ${index}`).toBe(0);
    // 60 MiB of them.
    expect(passed.bytes - seen).toBeLessThan(mib / 10);
    first.ring.close();
    second.ring.close();
    await eventually(() => memories() === before, 'no memory any more');
  });

  it('send what finds no room in the memory over the connection, in its place', async () => {
    const { first, second, passed } = await sharing('c', 'd', 'c-to-d');
    const [seen, began] = [passed.bytes, second.frames.length];
    // 20 × 4 MiB at once, of which the memory holds six or seven: nobody takes any while this runs.
    for (let number = 0; number < 20; number++) first.ring.send(frameOf(number, mib));
    await eventually(() => second.frames.length === began + 20, 'all of them');
    const numbers = second.frames.slice(began).map((frame) => new DataView(frame.buffer).getUint32(12, true));
    expect(numbers).toEqual(Array.from({ length: 20 }, (_, number) => number));
    expect((passed.bytes - seen) / mib).toBeGreaterThan(13 * 4);
    expect((passed.bytes - seen) / mib).toBeLessThan(15 * 4);
  });

  it('send all of it over the connection where the one behind is of an earlier version', async () => {
    const [a, b] = ['e', 'f'].map((name) => join(folder, name)) as [string, string];
    const came: FrameBytes[] = [];
    let before: Socket | undefined;
    const earlier = createServer((socket) => {
      closing.push(() => socket.destroy());
      socket.on('error', () => undefined);
      socket.write(encodeJsonFrame({ kind: 'alive', epoch: 0, number: 0 }, null));
      const assembler = new FrameAssembler();
      socket.on('data', (chunk) => assembler.take(chunk, (frame) => came.push(frame)));
    }).listen(b);
    closing.push(() => earlier.close());
    const memoriesBefore = memories();
    const { ring, turns } = place(a, b);
    await eventually(() => {
      before ??= createConnection(a).on('error', () => {
        before = undefined;
      });
      return turns.includes('up');
    }, 'a ring');
    closing.push(() => before?.destroy());
    ring.send(frameOf(7, mib));
    await eventually(() => came.some(({ length }) => length > 4 * mib), 'the frame');
    expect(memories()).toBe(memoriesBefore);
    expect(turns).toEqual(['up']);
  });

  it('break where a parcel says what cannot be', async () => {
    const [a, b] = ['g', 'h'].map((name) => join(folder, name)) as [string, string];
    const { turns } = place(a, b);
    const behind = createServer((socket) => {
      closing.push(() => socket.destroy());
      socket.on('error', () => undefined);
      socket.write(encodeJsonFrame({ kind: 'alive', epoch: 0, number: 0 }, null));
      socket.resume();
    }).listen(b);
    closing.push(() => behind.close());
    let socket: Socket | undefined;
    await eventually(() => {
      socket ??= createConnection(a).on('error', () => {
        socket = undefined;
      });
      return turns.includes('up');
    }, 'a ring');
    closing.push(() => socket?.destroy());
    socket!.write(encodeJsonFrame({ kind: 'parcel', epoch: 0, number: 0 }, { at: 0, bytes: 100, end: 100 }));
    await eventually(() => turns.length > 1, 'it broke');
    expect(turns[1]).toMatch(/a parcel came where no memory is shared/);
  });
});
