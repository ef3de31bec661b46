/** Frames that a stage writes into the memory of the one behind it, on another node, by libfabric. */
import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, readdirSync, readlinkSync, rmSync, writeSync } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, it } from 'vitest';
import {
  FabricInbox,
  FabricOutbox,
  type FabricPlace,
  fabric_bytes_min,
  usableFabrics,
} from '../../../agent/pipeline/fabric-frames.ts';
import {
  decodeFrame,
  encodeFrame,
  type FrameBytes,
  type FrameKind,
  isChecked,
  kindOf,
  metaOf,
} from '../../../agent/pipeline/frame.ts';
import { FrameAssembler } from '../../../agent/pipeline/frame-assembler.ts';
import { FrameReceiver } from '../../../agent/pipeline/frame-receiver.ts';
import { type Parcel, parcelMetaSchema } from '../../../agent/pipeline/frame-room.ts';
import { ProviderChoice } from '../../../agent/pipeline/provider-choice.ts';
import { ringFrame } from '../../../agent/pipeline/ring-frame.ts';
import type { FromRing, OwnNews, WayNews } from '../../../agent/pipeline/ring-messages.ts';
import { compiledFile } from '../../../host/programs.ts';
import { fabricAbsence } from '../../../native/fabric/fabric.ts';
import { frame_memory_bytes } from '../../../spec/worker-memory.ts';
import { eventually } from '../../mesh/support.ts';
import { apart_words, canBeApart } from './apart.ts';
import type { RingEnd } from './ring-end.ts';
import { isOnward, Place, Way } from './ring-support.ts';

const mib = 2 ** 20;
const fabrics = (...providers: string[]): FabricPlace => ({ host: '127.0.0.1', providers, are_named: true });
const tcp = fabrics('tcp');
const absence = fabricAbsence();
const fabricOnly = describe.skipIf(absence !== undefined);

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-fabric-'));
const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const frameOf = (number: number, bytes: number): FrameBytes =>
  encodeFrame({ kind: 'batch', epoch: 1, number }, Buffer.from('{}'), floatsOf(number, bytes));
/** Another one everywhere, so that bytes that lie elsewhere are seen. */
function floatsOf(seed: number, bytes: number): Float32Array {
  const floats = new Float32Array(Math.ceil(bytes / 4));
  for (let index = 0; index < floats.length; index++) floats[index] = index * 0.37 + seed;
  return floats;
}

fabricOnly('memory that is lent over a fabric', () => {
  async function pair(): Promise<[FabricOutbox, FabricInbox]> {
    const inbox = await FabricInbox.open('tcp', tcp.host);
    closing.push(() => inbox.close());
    const outbox = await FabricOutbox.connect('tcp', tcp.host, inbox.address);
    closing.push(() => outbox.close());
    await inbox.connected(outbox.probe);
    return [outbox, inbox];
  }

  it('has every frame as it was, several on their way, and none is overwritten before it was taken', async () => {
    const [outbox, inbox] = await pair();
    const lengths = [fabric_bytes_min, mib + 4, 5 * mib, 3 * mib, 12 * mib].map((bytes, at) =>
      frameOf(at, bytes),
    );
    const lying: { parcel: Parcel; frame: FrameBytes; written: Promise<void> }[] = [];
    let wentAround = 0;
    for (let number = 0; number < 40; number++) {
      const frame = lengths[(number * 7) % lengths.length]!;
      let put = outbox.put(frame);
      while (!put) {
        const { parcel, frame: was, written } = lying.shift()!;
        await written;
        expect(Buffer.compare(inbox.take(parcel), was)).toBe(0);
        outbox.taken(parcel.end);
        put = outbox.put(frame);
      }
      if (put.parcel.at === 0) wentAround++;
      lying.push({ ...put, frame });
    }
    for (const { parcel, frame, written } of lying) {
      await written;
      expect(Buffer.compare(inbox.take(parcel), frame)).toBe(0);
    }
    expect(wentAround).toBeGreaterThan(3);
    expect(() => inbox.take({ at: frame_memory_bytes - 8, bytes: 16, end: 16 })).toThrow(/cannot be used/);
  });

  it('leaves short frames to the connection', async () => {
    const [outbox] = await pair();
    expect(outbox.put(frameOf(1, fabric_bytes_min / 2))).toBeUndefined();
    // Nobody takes any: the third of 12 MiB finds no room.
    const long = frameOf(1, 12 * mib);
    const puts = [outbox.put(long), outbox.put(long), outbox.put(long)];
    expect(puts.map((put) => put !== undefined)).toEqual([true, true, false]);
    await Promise.all(puts.map((put) => put?.written));
  });

  it('is not used where the trial did not come, or the other one lends another size', async () => {
    const inbox = await FabricInbox.open('tcp', tcp.host);
    closing.push(() => inbox.close());
    await expect(inbox.connected('00'.repeat(63))).rejects.toThrow(/did not come/);
    const other = { ...inbox.address, memory_bytes: mib };
    await expect(FabricOutbox.connect('tcp', tcp.host, other)).rejects.toThrow(/lends 1048576 bytes/);
  });

  it('is nothing within a node, nor where the site has no private fabric', () => {
    expect(usableFabrics(fabrics('shm', 'tcp'))).toEqual(['tcp']);
    expect(usableFabrics(undefined)).toEqual([]);
  });
});

/** The stage behind a place, on another node: as `Ring` takes frames, but that it finds no memory of this one. */
class Elsewhere {
  readonly frames: FrameBytes[] = [];
  /** Of what came over the connection. */
  readonly kinds: FrameKind[] = [];
  receiver: FrameReceiver | undefined;
  /** Other bytes are in memory than were written, of every frame that a parcel is of. */
  damages = false;
  readonly news: OwnNews[] = [];
  readonly #damaging: ProviderChoice;
  #socket: Socket | undefined;

  constructor(listen: string, lends: FabricPlace | undefined) {
    this.#damaging = new ProviderChoice(usableFabrics(lends));
    const server = createServer((socket) => this.#serve(socket, lends)).listen(listen);
    closing.push(() => server.close());
  }

  say(kind: FrameKind, meta: unknown): void {
    this.#socket!.write(ringFrame(kind, meta));
  }

  /** Its end of the fabric goes, and the connection stays. */
  breakFabric(): void {
    this.receiver!.take(ringFrame('fabric', { step: 'closed', provider: 'tcp' }));
  }

  #serve(socket: Socket, lends: FabricPlace | undefined): void {
    this.#socket = socket;
    socket.on('error', () => undefined);
    closing.push(
      () => socket.destroy(),
      () => this.receiver?.close(),
    );
    this.receiver = new FrameReceiver(socket, lends, this.#damaging, (one) => this.news.push(one));
    const assembler = new FrameAssembler();
    socket.on('data', (chunk) => assembler.take(chunk, (bytes) => this.#took(socket, bytes)));
  }

  #took(socket: Socket, bytes: FrameBytes): void {
    const kind = kindOf(bytes)!;
    if (kind !== 'alive') this.kinds.push(kind);
    if (kind === 'shared') {
      socket.write(ringFrame('shared', { mapped: false }));
      return;
    }
    if (kind === 'parcel' && this.damages) damage(metaOf(decodeFrame(bytes), parcelMetaSchema));
    try {
      const frame = this.receiver!.take(bytes);
      if (frame) this.frames.push(frame);
    } catch {
      socket.destroy();
    }
  }
}

/** Of both ends: which memory is whose is not seen from outside. */
function damage({ at }: Parcel): void {
  const files = readdirSync('/proc/self/fd').filter((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`).includes('hpcserve-fabric-frames');
    } catch {
      return false; // the one by which the folder was read
    }
  });
  expect(files.length).toBeGreaterThanOrEqual(2);
  for (const fd of files) {
    const file = openSync(`/proc/self/fd/${fd}`, 'r+');
    writeSync(file, Buffer.from('damaged'), 0, 7, at + 4096);
    closeSync(file);
  }
}

let places = 0;

/** A place whose stage behind is elsewhere; the one before it is itself. */
async function beside(
  ours: FabricPlace | undefined,
  theirs: FabricPlace | undefined,
): Promise<[Place, Elsewhere]> {
  const [listen, next] = ['near', 'far'].map((end) => join(folder, `${end}${places}`)) as [string, string];
  places++;
  const far = new Elsewhere(next, theirs);
  const place = new Place(listen, next, ours);
  closing.push(() => place.ring.close());
  const before = new Place(`${listen}-before`, listen);
  closing.push(() => before.ring.close());
  await eventually(() => place.turns.includes('up'), 'a ring');
  return [place, far];
}

const wayOf = (news: readonly WayNews[]): string | undefined => {
  const last = news.findLast((one) => one.type === 'way');
  return last?.type === 'way' && last.way !== 'connection' ? last.way : undefined;
};
const numbersOf = (frames: readonly FrameBytes[]): number[] =>
  frames.map((frame) => new DataView(frame.buffer).getUint32(12, true));
const upTo = (count: number): number[] => Array.from({ length: count }, (_, number) => number);

fabricOnly('a stage whose neighbour is on another node', () => {
  it('writes long frames into its memory and sends short ones, in order', async () => {
    const [place, far] = await beside(tcp, tcp);
    await eventually(() => wayOf(place.news) !== undefined, 'the way');
    expect(wayOf(place.news)).toMatch(/^rma \(tcp/);
    const sent = upTo(60).map((number) => frameOf(number, number % 3 === 0 ? 400 : mib));
    for (const frame of sent) place.ring.send(frame.slice());
    await eventually(() => far.frames.length === sent.length, 'all of them');
    for (const [index, frame] of sent.entries())
      expect(Buffer.compare(far.frames[index]!, frame), `frame ${index}`).toBe(0);
    // Of 40 MiB at once the memory holds 33; the rest goes over the connection, in its place.
    const parcels = far.kinds.filter((kind) => kind === 'parcel').length;
    expect(parcels).toBeGreaterThanOrEqual(30);
    expect(parcels + far.kinds.filter((kind) => kind === 'batch').length).toBe(sent.length);
  });

  it('tries the next provider where one does not work, and says which', async () => {
    const both = fabrics('nothing', 'tcp');
    const [place, far] = await beside(both, both);
    await eventually(() => wayOf(place.news) !== undefined, 'the way');
    expect(place.news).toMatchObject([
      { type: 'way', way: 'connection' },
      { type: 'notice', provider: 'nothing', error: { code: 'E_STAGE_FABRIC' } },
      { type: 'way', provider: 'tcp' },
    ]);
    place.ring.send(frameOf(0, mib));
    await eventually(() => far.frames.length === 1, 'the frame');
    expect(far.kinds.at(-1)).toBe('parcel');
  });

  it('sends all over the connection where none works, or the other one has none', async () => {
    const nothing = fabrics('nothing');
    for (const [ours, theirs, asks, notices] of [
      [nothing, nothing, true, 1],
      // None that the site names: no fault.
      [{ ...nothing, are_named: false }, nothing, true, 0],
      [tcp, undefined, false, 0],
      [undefined, tcp, false, 0],
      [tcp, nothing, false, 0],
    ] as const) {
      const [place, far] = await beside(ours, theirs);
      await eventually(() => far.kinds.includes('shared'), 'its question');
      // It asks, and gives up; or it would have asked by the time that frames have come.
      if (asks)
        await eventually(() => far.kinds.filter((kind) => kind === 'fabric').length === 2, 'its trial');
      for (let number = 0; number < 20; number++) {
        place.ring.send(frameOf(number, mib));
        await eventually(() => far.frames.length === number + 1, 'the frame');
      }
      expect(far.kinds.filter((kind) => kind === 'fabric').length).toBe(asks ? 2 : 0);
      expect(far.kinds).not.toContain('parcel');
      expect(wayOf(place.news)).toBeUndefined();
      expect(place.news.filter(({ type }) => type === 'notice').length).toBe(notices);
      expect(place.turns).toEqual(['up']);
    }
  });

  it('sends over the connection what was on its way where the fabric breaks, in its place, and says so', async () => {
    const [place, far] = await beside(tcp, tcp);
    await eventually(() => wayOf(place.news) !== undefined, 'the way');
    place.ring.send(frameOf(0, mib));
    await eventually(() => far.frames.length === 1, 'one by the fabric');
    far.breakFabric();
    const sent = upTo(6).map((number) => frameOf(number, number % 2 === 0 ? mib : 400));
    for (const frame of sent) place.ring.send(frame.slice());
    await eventually(() => far.frames.length === 1 + sent.length, 'all of them');
    expect(numbersOf(far.frames.slice(1))).toEqual(upTo(6));
    for (const [index, frame] of sent.entries())
      expect(Buffer.compare(far.frames[1 + index]!, frame), `frame ${index}`).toBe(0);
    expect(place.news.at(-1)).toMatchObject({ type: 'notice', provider: 'tcp' });
    expect(place.news.filter(({ type }) => type === 'notice').length).toBe(1);
    expect(place.turns).toEqual(['up']);
  });

  it('goes on by the next provider where one breaks', async () => {
    const both = fabrics('tcp', 'tcp;ofi_rxm');
    const [place, far] = await beside(both, both);
    await eventually(() => wayOf(place.news) !== undefined, 'the way');
    far.breakFabric();
    place.ring.send(frameOf(0, mib));
    await eventually(() => place.news.at(-1)?.provider === 'tcp;ofi_rxm', 'the other way');
    place.ring.send(frameOf(1, mib));
    await eventually(() => far.frames.length === 2, 'both frames');
    expect(far.kinds.at(-1)).toBe('parcel');
    expect(numbersOf(far.frames)).toEqual([0, 1]);
  });

  it('leaves a fabric by which a frame came damaged, on the next connection too, and says so', async () => {
    const [place, far] = await beside(tcp, tcp);
    await eventually(() => wayOf(place.news) !== undefined, 'the way');
    place.ring.send(frameOf(0, mib));
    await eventually(() => far.frames.length === 1, 'one that is whole');
    expect(far.frames.map(isChecked)).toEqual([true]);
    far.damages = true;
    place.ring.send(frameOf(1, mib));
    await eventually(() => place.turns.join() === 'up,down,up', 'the ring to come up again');
    const damaged = { type: 'notice', error: { because: ['a frame came with other bytes than were sent'] } };
    const anew = { type: 'way', way: 'connection' };
    expect(far.news).toMatchObject([anew, damaged, anew, damaged]);
    expect(JSON.stringify(far.news[1])).toContain('cannot travel by rma (tcp) from the stage before');
    const parcels = far.kinds.filter((kind) => kind === 'parcel').length;
    for (let number = 2; number < 6; number++) {
      place.ring.send(frameOf(number, mib));
      await eventually(() => far.frames.length === number, 'the frame');
    }
    expect(numbersOf(far.frames)).toEqual([0, 2, 3, 4, 5]);
    expect(far.kinds.filter((kind) => kind === 'parcel').length).toBe(parcels);
    expect(wayOf(place.news)).toBeUndefined();
  });

  it('takes what is said twice as said once', async () => {
    const [place, far] = await beside(tcp, tcp);
    await eventually(() => wayOf(place.news) !== undefined, 'the way');
    const trials = far.kinds.filter((kind) => kind === 'fabric').length;
    for (let count = 0; count < 3; count++) far.say('shared', { mapped: false });
    far.say('fabric', { step: 'ready', provider: 'tcp' });
    place.ring.send(frameOf(0, mib));
    await eventually(() => far.frames.length === 1, 'the frame');
    expect(far.kinds.at(-1)).toBe('parcel');
    expect(far.kinds.filter((kind) => kind === 'fabric').length).toBe(trials);
    expect(place.turns).toEqual(['up']);
  });

  it('breaks where the one before says what cannot be', async () => {
    const [listen, next] = [join(folder, 'p'), join(folder, 'q')];
    const both = [new Place(listen, next, tcp), new Place(next, listen, tcp)] as const;
    for (const { ring } of both) closing.push(() => ring.close());
    await eventually(() => both.every(({ turns }) => turns.includes('up')), 'a ring');
    both[0].ring.send(ringFrame('fabric', { step: 'lent', provider: 'tcp', address: 'elsewhere' }));
    await eventually(() => both[1].turns.includes('down'), 'it broke');
  });
});

describe.skipIf(absence !== undefined || !canBeApart)('two processes that do not see each other', () => {
  it('pass long frames around by the fabric alone, unchanged, until one of them is killed', async () => {
    const names = ['near', 'far', 'there', 'back'].map((name) => join(folder, `ring-${name}`));
    const [near, far, there, back] = names as [string, string, string, string];
    const ways = [new Way(there, far), new Way(back, near)];
    closing.push(...ways.map((way) => () => way[Symbol.asyncDispose]()));
    const child = ringEnd({ listen: far, next: back, fabrics: tcp });
    const place = new Place(near, there, tcp);
    closing.push(() => place.ring.close());
    await eventually(() => wayOf(place.news) !== undefined, 'our way');
    await eventually(() => wayOf(child.told) !== undefined, 'its way');
    const before = ways.map(({ bytes }) => bytes);
    for (let number = 0; number < 32; number++) {
      const frame = frameOf(number, 2 * mib);
      place.ring.send(frame.slice());
      await eventually(() => place.frames.length === number + 1, 'it came around');
      expect(Buffer.compare(place.frames[number]!, frame)).toBe(0);
    }
    // 64 MiB each way.
    for (const [index, { bytes }] of ways.entries()) expect(bytes - before[index]!).toBeLessThan(mib);
    expect([...place.news, ...child.told].filter(({ type }) => type === 'notice')).toEqual([]);
    for (let number = 0; number < 8; number++) place.ring.send(frameOf(number, 2 * mib));
    process.kill(-child.process.pid!, 'SIGKILL');
    await eventually(() => place.turns.at(-1) === 'down', 'it is lost');
  });
});

/** A ring's place in a process that has process ids of its own. */
function ringEnd(end: RingEnd): { process: ChildProcess; told: WayNews[] } {
  const file = compiledFile('test/agent/pipeline/ring-end.js');
  const words = [...apart_words, process.execPath, file, JSON.stringify(end)];
  const child = spawn('unshare', words, { stdio: ['ignore', 'pipe', 'inherit'], detached: true });
  closing.push(() => {
    if (child.exitCode === null && child.signalCode === null) process.kill(-child.pid!, 'SIGKILL');
  });
  const told: WayNews[] = [];
  child.stdout.on('data', (text: Buffer) => {
    for (const line of text
      .toString()
      .split('\n')
      .filter((part) => part !== ''))
      told.push(...[JSON.parse(line) as FromRing].filter(isOnward));
  });
  return { process: child, told };
}
