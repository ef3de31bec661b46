/** The compute thread's life, in this thread: another one wakes it, and ends it. */
import { MessageChannel, Worker } from 'node:worker_threads';
import { expect, it } from 'vitest';
import { ComputeLoop } from '../../../agent/device-worker/compute/compute-loop.ts';
import { pulse } from '../../../agent/device-worker/compute/watchdog.ts';
import { defaultSharingSettings } from '../../../solver/sharing/settings.ts';

const lives_ms = 2500;

/** Wakes the thread again and again, as messages do that come all the time; then tells it to stop. */
const waker = `
  const { workerData: { port, words, signal, lives_ms } } = require('node:worker_threads');
  const wake = () => {
    Atomics.add(words, signal, 1);
    Atomics.notify(words, signal);
  };
  const waking = setInterval(wake, 5);
  setTimeout(() => {
    clearInterval(waking);
    port.postMessage({ type: 'stop' });
    wake();
    port.close();
  }, lives_ms);
`;

it('gives Node’s event loop its turns, where freed views of native memory are given back', async () => {
  const words = new Int32Array(new SharedArrayBuffer(4 * pulse.words));
  const { port1, port2 } = new MessageChannel();
  const worker = new Worker(waker, {
    eval: true,
    workerData: { port: port2, words, signal: pulse.signal, lives_ms },
    transferList: [port2],
  });
  const pool = () => expect.fail('no model was to be loaded');
  const loop = new ComputeLoop(port1, words, pool, defaultSharingSettings);
  let turns = 0;
  const turn = (): void => {
    turns++;
    again = setImmediate(turn);
  };
  let again = setImmediate(turn);
  try {
    await loop.run();
    const turned = turns;
    expect(turned).toBeGreaterThanOrEqual(1);
    // Rarely, so that it costs nothing.
    expect(turned).toBeLessThan(20);
  } finally {
    clearImmediate(again);
    port1.close();
    await worker.terminate();
  }
}, 30_000);
