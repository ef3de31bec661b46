/** A gateway that stood still itself blames nobody for what it did not hear. */
import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { SilenceTimer } from '../../gateway/silence-timer.ts';
import { chunkEvent, doneEvent, type Stage, startStage } from './support.ts';

let stage: Stage | undefined;
afterEach(async () => {
  await stage?.close();
  stage = undefined;
});

/** Nothing of this process goes on. */
function standStill(time_ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, time_ms);
}

describe('silence', () => {
  afterEach(() => {
    // What is spied on are the timers that are not real: put back later, they would stay for all tests of this process.
    vi.restoreAllMocks();
    vi.useRealTimers();
  });

  it('is counted from what was heard last, without a timer for each time', () => {
    vi.useFakeTimers({
      toFake: ['setTimeout', 'clearTimeout', 'setImmediate', 'clearImmediate', 'performance'],
    });
    const set = vi.spyOn(globalThis, 'setTimeout');
    const heard: [limit_ms: number, at_ms: number][] = [];
    const silence = new SilenceTimer((limit_ms) => void heard.push([limit_ms, performance.now()]));
    for (let beat = 0; beat < 40; beat++) {
      silence.expectWithin(1000);
      vi.advanceTimersByTime(250);
    }
    expect(heard).toEqual([]);
    expect(set.mock.calls.length).toBeLessThan(20);
    vi.advanceTimersByTime(749);
    expect(heard).toEqual([]);
    vi.advanceTimersByTime(2);
    expect(heard).toEqual([[1000, expect.closeTo(10_750, -1)]]);
    // A shorter time than the one that is waited for.
    silence.expectWithin(1000);
    silence.expectWithin(100);
    vi.advanceTimersByTime(110);
    expect(heard.at(-1)![0]).toBe(100);
    silence.stop();
    vi.advanceTimersByTime(5000);
    expect(heard).toHaveLength(2);
  });
});

describe('an event loop that is held for 5 s', () => {
  it('breaks no stream and loses no session', async () => {
    stage = await startStage();
    const upstream = await stage.session(async (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      for (let index = 0; index < 20; index++) {
        response.write(chunkEvent(`${index} `));
        await delay(100);
      }
      response.end(chunkEvent('', 'stop') + doneEvent);
    });
    const answer = await stage.post('/v1/chat/completions', { model: 'tiny', stream: true });
    const reader = answer.body!.getReader();
    let text = Buffer.from((await reader.read()).value!).toString();
    // Later heartbeats than the first are waited for no longer than 3 s.
    await delay(800);
    const before = stage.logged.length;
    standStill(5000);
    for (let part = await reader.read(); !part.done; part = await reader.read())
      text += Buffer.from(part.value).toString();
    expect(text).toContain('19 ');
    expect(text.endsWith(doneEvent)).toBe(true);
    expect(upstream.requests).toHaveLength(1);
    expect(
      stage.logged.slice(before).filter((line) => /unreachable|failed in the middle/.test(line)),
    ).toEqual([]);
  });

  it('is forgiven once: who is silent after it is given up', async () => {
    const heard: { limit_ms: number; at_ms: number }[] = [];
    const silence = new SilenceTimer((limit_ms) => void heard.push({ limit_ms, at_ms: performance.now() }));
    silence.expectWithin(1000);
    standStill(2000);
    const resumed_ms = performance.now();
    await expect.poll(() => heard.length).toBe(1);
    expect(heard[0]!.limit_ms).toBe(1000);
    // As long as it stood still beyond the limit.
    expect(heard[0]!.at_ms - resumed_ms).toBeGreaterThan(900);
    silence.expectWithin(50);
    silence.stop();
    await delay(150);
    expect(heard).toHaveLength(1);
  });
});
