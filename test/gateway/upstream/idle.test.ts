/** Connections on which nothing is asked any more: given up before their peer does, and looked at no more often. */
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { AnswerReceiver } from '../../../gateway/upstream/connection.ts';
import { UpstreamPool, type Ways } from '../../../gateway/upstream/pool.ts';
import type { WayEvents } from '../../../gateway/upstream/session-way.ts';

beforeEach(() => void vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] }));
afterEach(() => {
  // What is spied on are the timers that are not real: put back later, they would stay for all tests of this process.
  vi.restoreAllMocks();
  vi.useRealTimers();
});

/** Ways whose other end answers at once, and keeps them for so long. */
class Answering implements Ways {
  readonly destroyed_ms: number[] = [];
  opened = 0;
  readonly #keep_alive: string;

  constructor(keep_alive: string) {
    this.#keep_alive = keep_alive;
  }

  async open(events: WayEvents) {
    this.opened++;
    const answer = `HTTP/1.1 200 OK\r\ncontent-length: 2\r\n${this.#keep_alive}\r\nok`;
    return {
      kept: false,
      write: () => {
        queueMicrotask(() => events.read(Buffer.from(answer)));
        return true;
      },
      pause: () => undefined,
      resume: () => undefined,
      destroy: () => void this.destroyed_ms.push(performance.now()),
    };
  }

  close(): void {}
}

function ask(pool: UpstreamPool): Promise<void> {
  return new Promise((resolve, reject) => {
    const receiver: AnswerReceiver = {
      onHead: () => undefined,
      onBody: () => true,
      onEnd: () => resolve(),
      onError: reject,
    };
    pool.send('GET / HTTP/1.1\r\n\r\n', [], receiver);
  });
}

it.each([
  ['a peer that keeps them for 65 s', 'keep-alive: timeout=65\r\n', 64_000],
  ['a peer that says nothing', '', 4000],
])('%s: each goes in time, and nobody looks before', async (_what, keep_alive, limit_ms) => {
  const ways = new Answering(keep_alive);
  const pool = new UpstreamPool(ways);
  await Promise.all([ask(pool), ask(pool)]);
  await vi.advanceTimersByTimeAsync(1000);
  // One is used again, and so goes later than the other.
  await ask(pool);
  expect(ways.opened).toBe(2);
  const set = vi.spyOn(globalThis, 'setTimeout');
  await vi.advanceTimersByTimeAsync(limit_ms - 1001);
  expect(ways.destroyed_ms).toEqual([]);
  expect(set).not.toHaveBeenCalled();
  await vi.advanceTimersByTimeAsync(1501);
  expect(ways.destroyed_ms.map((at_ms) => at_ms <= limit_ms + 1500)).toEqual([true, true]);
  expect(vi.getTimerCount()).toBe(0);
  pool.destroy(new Error('the test is over'));
});

it('one that was never used goes in its own time, though others are kept for longer', async () => {
  const ways = new Answering('keep-alive: timeout=65\r\n');
  const pool = new UpstreamPool(ways);
  await ask(pool);
  // Another takes that connection, so that one is opened for the next, which is given up before it is there.
  const again = ask(pool);
  const receiver: AnswerReceiver = {
    onHead: () => undefined,
    onBody: () => true,
    onEnd: () => undefined,
    onError: () => undefined,
  };
  pool.send('GET / HTTP/1.1\r\n\r\n', [], receiver).abort();
  await again;
  expect(ways.opened).toBe(2);
  await vi.advanceTimersByTimeAsync(5000);
  expect(ways.destroyed_ms).toHaveLength(1);
  pool.destroy(new Error('the test is over'));
});
