/** Frames by memory that two stages share: what lies there, what goes over the connection, and who may see it. */
import { closeSync, mkdtempSync, openSync, readdirSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { createConnection, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { encodeFrame, encodeJsonFrame, type FrameBytes } from '../../../agent/pipeline/frame.ts';
import { FrameAssembler } from '../../../agent/pipeline/frame-assembler.ts';
import type { Parcel } from '../../../agent/pipeline/frame-room.ts';
import { FrameInbox, FrameOutbox, shared_bytes_min } from '../../../agent/pipeline/shared-frames.ts';
import { SharedMemory } from '../../../native/memory-map.ts';
import { frame_memory_bytes } from '../../../spec/worker-memory.ts';
import { eventually } from '../../mesh/support.ts';
import { Place, Way } from './ring-support.ts';

const mib = 2 ** 20;
const folder = mkdtempSync(join(tmpdir(), 'hpcserve-shared-'));
const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
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
    expect(outbox.put(filled(frame_memory_bytes, 1))).toBeUndefined();
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
    const beyond = { at: frame_memory_bytes - mib, bytes: mib, end: 1 };
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

interface Sharing {
  first: Place;
  second: Place;
  /** The connection from the first to the second. */
  way: Way;
}

/** A ring of two, once frames of the first go to the second by memory. */
async function sharing(...names: [string, string, string]): Promise<Sharing> {
  const [a, b, between] = names.map((name) => join(folder, name)) as [string, string, string];
  const way = new Way(between, b);
  const [first, second] = [new Place(a, between), new Place(b, a)];
  closing.push(
    () => way[Symbol.asyncDispose](),
    () => first.ring.close(),
    () => second.ring.close(),
  );
  await eventually(() => first.turns.join() === 'up' && second.turns.join() === 'up', 'a ring');
  // Once the stage behind has mapped it, and the stage before knows.
  await eventually(async () => {
    const [bytes, frames] = [way.bytes, second.frames.length];
    first.ring.send(frameOf(0, mib));
    await eventually(() => second.frames.length === frames + 1, 'the frame');
    return way.bytes - bytes < mib;
  }, 'a frame by memory');
  return { first, second, way };
}

/** A place beside connections, as of an earlier version: what comes behind it, and how to say something before it. */
async function besideEarlier(
  ...names: [string, string]
): Promise<{ place: Place; came: FrameBytes[]; say: (frame: FrameBytes) => void }> {
  const [a, b] = names.map((name) => join(folder, name)) as [string, string];
  const came: FrameBytes[] = [];
  const behind = createServer((socket) => {
    closing.push(() => socket.destroy());
    socket.on('error', () => undefined);
    socket.write(encodeJsonFrame({ kind: 'alive', epoch: 0, number: 0 }, null));
    const assembler = new FrameAssembler();
    socket.on('data', (chunk) => assembler.take(chunk, (frame) => came.push(frame)));
  }).listen(b);
  const place = new Place(a, b);
  let before: Socket | undefined;
  closing.push(
    () => behind.close(),
    () => place.ring.close(),
    () => before?.destroy(),
  );
  await eventually(() => {
    before ??= createConnection(a).on('error', () => {
      before = undefined;
    });
    return place.turns.includes('up');
  }, 'a ring');
  return { place, came, say: (frame) => void before!.write(frame) };
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
    const { first, second, way } = await sharing('a', 'b', 'a-to-b');
    expect(memories()).toBe(before + 2);
    const [seen, began] = [way.bytes, second.frames.length];
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
    expect(way.bytes - seen).toBeLessThan(mib / 10);
    first.ring.close();
    second.ring.close();
    await eventually(() => memories() === before, 'no memory any more');
  });

  it('send what finds no room in the memory over the connection, in its place', async () => {
    const { first, second, way } = await sharing('c', 'd', 'c-to-d');
    const [seen, began] = [way.bytes, second.frames.length];
    // 20 × 4 MiB at once, of which the memory holds seven or eight: nobody takes any while this runs.
    for (let number = 0; number < 20; number++) first.ring.send(frameOf(number, mib));
    await eventually(() => second.frames.length === began + 20, 'all of them');
    const numbers = second.frames.slice(began).map((frame) => new DataView(frame.buffer).getUint32(12, true));
    expect(numbers).toEqual(Array.from({ length: 20 }, (_, number) => number));
    expect((way.bytes - seen) / mib).toBeGreaterThan(12 * 4);
    expect((way.bytes - seen) / mib).toBeLessThan(14 * 4);
  });

  it('send all of it over the connection where the one behind is of an earlier version', async () => {
    const memoriesBefore = memories();
    const { place, came } = await besideEarlier('e', 'f');
    place.ring.send(frameOf(7, mib));
    await eventually(() => came.some(({ length }) => length > 4 * mib), 'the frame');
    expect(memories()).toBe(memoriesBefore);
    expect(place.turns).toEqual(['up']);
  });

  it('break where a parcel says what cannot be', async () => {
    const { place, say } = await besideEarlier('g', 'h');
    say(encodeJsonFrame({ kind: 'parcel', epoch: 0, number: 0 }, { at: 0, bytes: 100, end: 100 }));
    await eventually(() => place.turns.length > 1, 'it broke');
    expect(place.told.at(-1)).toMatchObject({
      type: 'down',
      because: expect.stringContaining('a parcel came where no memory is shared'),
    });
  });

  it('break where the memory is said to be where none can be', async () => {
    const { place, say } = await besideEarlier('i', 'j');
    say(encodeJsonFrame({ kind: 'shared', epoch: 0, number: 0 }, { pid: 0 }));
    await eventually(() => place.turns.length > 1, 'it broke');
    expect(place.turns[1]).toBe('down');
  });
});
