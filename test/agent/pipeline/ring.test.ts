/** The connections of a pipeline whose stages are on several nodes, one of which is lost. */
import { existsSync } from 'node:fs';
import { createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { decodeFrame, encodeJsonFrame } from '../../../agent/pipeline/frame.ts';
import { eventually, scratchFolder } from '../../mesh/support.ts';
import { Place, Way } from './ring-support.ts';
import { ofProtocol } from './support.ts';

/** As a host that vanishes once it has taken a connection: nothing comes of it, not even its end. */
class SilentWay implements AsyncDisposable {
  taken = 0;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  constructor(listen: string) {
    this.#server = createServer((socket) => {
      this.taken++;
      this.#sockets.add(socket);
      socket.on('error', () => socket.destroy());
    });
    this.#server.listen(listen);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

test('a stage between two others that is lost does not let them come up and break until it is back', {
  timeout: 60_000,
}, async () => {
  await using scratch = await scratchFolder();
  const path = (name: string): string => join(scratch.path, name);
  await using way = new Way(path('to-1'), path('1'));
  using first = new Place(path('0'), path('to-1'));
  using last = new Place(path('2'), path('0'));
  const middle = new Place(path('1'), path('2'));
  const others = [first, last];
  await eventually(
    () => [middle, ...others].every(({ turns }) => turns.join() === 'up'),
    'the ring to close',
  );

  middle.ring.close();
  await eventually(() => others.every(({ turns }) => turns.at(-1) === 'down'), 'the loss to be noticed');
  const tries = way.tried_ms.length;
  const since = await eventually(
    () => (way.tried_ms.length >= tries + 5 ? way.tried_ms.slice(tries) : undefined),
    'five tries to reach the stage that is lost',
  );
  expect(others.map(({ turns }) => turns)).toEqual([
    ['up', 'down'],
    ['up', 'down'],
  ]);
  const pauses_ms = since.slice(1).map((at_ms, index) => at_ms - since[index]!);
  expect(pauses_ms.at(-1), pauses_ms.join()).toBeGreaterThan(3 * pauses_ms[0]!);
  expect(Math.max(...pauses_ms)).toBeLessThan(5000);

  using again = new Place(path('1'), path('2'));
  await eventually(() => [again, ...others].every(({ turns }) => turns.at(-1) === 'up'), 'it to be back');
  first.ring.send(encodeJsonFrame({ kind: 'begin', epoch: 3, number: 0 }, null));
  const frame = await eventually(
    () => again.told.flatMap((message) => (message.type === 'frame' ? [message.frame] : []))[0],
    'a frame at the stage behind',
  );
  expect(decodeFrame(frame)).toMatchObject({ kind: 'begin', epoch: 3 });
});

test('a stage whose place was that of another ring, which is closed late, is reached all the same', async () => {
  await using scratch = await scratchFolder();
  const path = (name: string): string => join(scratch.path, name);
  const before = new Place(path('1'), path('0'));
  await eventually(() => existsSync(path('1')), 'the ring before it to listen');
  using again = new Place(path('1'), path('0'));
  await eventually(() => existsSync(path('1')), 'the next ring to listen');
  // With its server goes the socket of the name that it listened on.
  before.ring.close();
  using first = new Place(path('0'), path('1'));
  await eventually(() => [first, again].every(({ turns }) => turns.join() === 'up'), 'the ring to close');
});

test('a stage behind whose connection is taken and never greeted is tried again', async () => {
  await using scratch = await scratchFolder();
  const path = (name: string): string => join(scratch.path, name);
  await using way = new SilentWay(path('1'));
  using first = new Place(path('0'), path('1'));
  await eventually(() => way.taken === 1, 'its connection to be taken');
  await eventually(() => way.taken === 2, 'a second try, once nobody greeted for 10 s', 60_000);
  expect(first.turns).toEqual([]);
});

test('a neighbour of another version is named once, and the ring comes up with one of this version', async () => {
  await using scratch = await scratchFolder();
  const path = (name: string): string => join(scratch.path, name);
  let reached = 0;
  const other = createServer((socket) => {
    reached++;
    socket.on('error', () => socket.destroy());
    // As a stage of a later protocol greets, in the pieces that a network may make of it.
    const greeting = ofProtocol(99, encodeJsonFrame({ kind: 'alive', epoch: 0, number: 0 }, null));
    socket.write(greeting.subarray(0, 7));
    setTimeout(() => socket.write(greeting.subarray(7)), 20);
  });
  other.listen(path('1'));
  using first = new Place(path('0'), path('1'));
  await eventually(() => reached >= 3, 'three tries');
  const [told, ...more] = first.told;
  expect(more).toEqual([]);
  expect(told).toMatchObject({ type: 'foreign', error: { code: 'E_STAGE_MISMATCH' } });
  expect(JSON.stringify(told)).toContain('protocol 99, and this program speaks 3');

  other.close();
  using second = new Place(path('1'), path('0'));
  await eventually(() => [first, second].every(({ turns }) => turns.at(-1) === 'up'), 'the ring to close');
});
