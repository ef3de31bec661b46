/** The compute thread's life, in this thread: another one wakes it, and ends it. */
import { once } from 'node:events';
import { mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { cpuBackend } from '../../../agent/backend/cpu/cpu-backend.ts';
import { ComputeLoop } from '../../../agent/device-worker/compute/compute-loop.ts';
import { pulse } from '../../../agent/device-worker/compute/watchdog.ts';
import type { LoadMessage } from '../../../agent/device-worker/compute/worker-model.ts';
import { openModelFile } from '../../../agent/engine/model-file.ts';
import type { Stage } from '../../../agent/engine/stage.ts';
import type { StageOpening } from '../../../agent/engine/stage-opening.ts';
import { DevicePool } from '../../../agent/memory/device-pool.ts';
import { LoadCounters } from '../../../agent/memory/load/load-work.ts';
import { UnitLoader } from '../../../agent/memory/load/unit-loader.ts';
import { encodeBatchMeta } from '../../../agent/pipeline/batch-meta.ts';
import {
  decodeFrame,
  encodeFrame,
  encodeJsonFrame,
  type FrameBytes,
  metaOf,
} from '../../../agent/pipeline/frame.ts';
import { failedMetaSchema } from '../../../agent/pipeline/stage-facts.ts';
import { compiledFile } from '../../../host/programs.ts';
import { loadGgml } from '../../../native/ggml.ts';
import type { OperatorRange } from '../../../solver/refactoring/layout.ts';
import { defaultSharingSettings } from '../../../solver/sharing/settings.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { PoolReport } from '../../../spec/pool-report.ts';
import { scratchFolder } from '../../mesh/support.ts';
import { engineOptions, model } from '../engine/support.ts';
import { testBackend } from '../engine/test-backend.ts';

const lives_ms = 2500;

it('ends where its device has failed, says so, and touches nothing of it any more', async () => {
  const words = new Int32Array(new SharedArrayBuffer(4 * pulse.words));
  const { port1, port2 } = new MessageChannel();
  const failed = new HpcserveError('E_DEVICE_FAILED', { what: 'ggml ended a graph on G with status -1' });
  // Of the device there is only what it says: no other real one can be made to fail.
  const pool = () => ({
    open: () => {
      throw failed;
    },
  });
  const loop = new ComputeLoop(
    port1,
    words,
    pool as unknown as ConstructorParameters<typeof ComputeLoop>[2],
    defaultSharingSettings,
  );
  port2.postMessage({ type: 'load', name: 'm', vocabulary: null, utf8: null, profile_ms: 1, options: {} });
  try {
    await expect(loop.run()).rejects.toBe(failed);
    const told = [];
    for (let next = receiveMessageOnPort(port2); next; next = receiveMessageOnPort(port2))
      told.push((next.message as { type: string }).type);
    expect(told.at(-1)).toBe('device_failed');
    expect(told).not.toContain('load_failed');
  } finally {
    port1.close();
  }
});

it('tells of a stage what keeps its device from a pool, and serves on', async () => {
  await using scratch = await scratchFolder();
  const words = new Int32Array(new SharedArrayBuffer(4 * pulse.words));
  const { port1, port2 } = new MessageChannel();
  const options = { pool_bytes: 2 ** 52, threads: 1, load_threads: 1 };
  const pool = () => DevicePool.largest(cpuBackend(loadGgml()), options);
  const loop = new ComputeLoop(port1, words, pool, defaultSharingSettings);
  const [listen, next] = [join(scratch.path, 'listen'), join(scratch.path, 'next')];
  const place = {
    stage: 1,
    stages: 2,
    begin: 3,
    end: 6,
    listen,
    next,
    device: 'CPU',
    device_identity: 'cpu',
  };
  const stage = { vocabulary: null, utf8: null, profile_ms: 1, options: {}, pipeline: place };
  port2.postMessage({ type: 'load', name: 'm', ...stage });
  port2.postMessage({ type: 'load', name: 'm', ...stage });
  port2.postMessage({ type: 'prepare', refactoring: 1, load: { type: 'load', name: 'other', ...stage } });
  port2.postMessage({ type: 'stop' });
  try {
    await loop.run();
    const told = [];
    for (let next = receiveMessageOnPort(port2); next; next = receiveMessageOnPort(port2))
      told.push(next.message);
    const failed = { type: 'load_failed', name: 'm', error: { code: 'E_NATIVE_MEMORY' } };
    expect(told.filter(({ type }) => type === 'load_failed')).toMatchObject([failed, failed]);
  } finally {
    port1.close();
  }
});

it('goes on where a file whose contents were learned cannot be read any more', async () => {
  await using scratch = await scratchFolder();
  const path = join(scratch.path, 'model.gguf');
  symlinkSync('model.gguf', path);
  const words = new Int32Array(new SharedArrayBuffer(4 * pulse.words));
  const { port1, port2 } = new MessageChannel();
  const pool = new DevicePool(cpuBackend(loadGgml()), { pool_bytes: 2 ** 24, threads: 1 });
  expect(() => pool.adoptContents(path)).toThrow('ELOOP');
  const loop = new ComputeLoop(port1, words, () => pool, defaultSharingSettings);
  port2.postMessage({ type: 'learned', path });
  port2.postMessage({ type: 'stop' });
  try {
    await loop.run();
  } finally {
    port1.close();
    await pool.close();
  }
});

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
});

it('has a stage serve while another one loads beside it: its own thread reads nothing of the file', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-loop-'));
  const words = new Int32Array(new SharedArrayBuffer(4 * pulse.words));
  const { port1, port2 } = new MessageChannel();
  const device = new DevicePool(testBackend(), { pool_bytes: 256 * 2 ** 20, threads: 1 });
  const helped = new Map<number, boolean[]>();
  let opened = 0;
  const openStage = device.openStage.bind(device);
  device.openStage = (...asked) => {
    const opening = openStage(...asked);
    const advance = opening.advance.bind(opening);
    const helps: boolean[] = [];
    helped.set(opened++, helps);
    opening.advance = (help) => {
      helps.push(help);
      const stage = advance(help);
      // The next one comes once the first is there, and ends the loop.
      if (stage) {
        port2.postMessage(helped.size === 1 ? next : { type: 'stop' });
        Atomics.add(words, pulse.signal, 1);
      }
      return stage;
    };
    return opening;
  };
  const load = await stageMessage(folder, { begin: 1, end: 6 }, 1);
  const next = { type: 'prepare', refactoring: 1, load };
  port2.postMessage(await stageMessage(folder, { begin: 3, end: 6 }, 0));
  const loop = new ComputeLoop(port1, words, () => device, defaultSharingSettings);
  try {
    await loop.run();
    // Nobody is there beside the first one.
    expect(helped.get(0)).toContain(true);
    expect(helped.get(1)!.length).toBeGreaterThan(0);
    expect(helped.get(1)).not.toContain(true);
  } finally {
    port1.close();
    device.close();
    rmSync(folder, { recursive: true });
  }
});

/** A coordinator: it sends a frame when the one before has come back, and ends the loop with what comes of the last. */
const coordinator = `
  const { workerData: { ring, listen, next, frames, port, words, signal }, parentPort } = require('node:worker_threads');
  const came = [];
  let sent = 0;
  import(ring).then(({ Ring }) => {
    const own = new Ring(listen, next, (message) => {
      if (message.type === 'frame') came.push(message.frame);
      else if (message.type !== 'up') return;
      if (sent < frames.length) return own.send(frames[sent++]);
      port.postMessage({ type: 'stop' });
      Atomics.add(words, signal, 1);
      Atomics.notify(words, signal);
      parentPort.postMessage(came);
    });
  });
`;

it('ends where its device fails under a later stage of a pipeline, whose coordinator is told', async () => {
  await using scratch = await scratchFolder();
  const words = new Int32Array(new SharedArrayBuffer(4 * pulse.words));
  const { port1, port2 } = new MessageChannel();
  const device = new DevicePool(testBackend(), { pool_bytes: 256 * 2 ** 20, threads: 1 });
  // Of the device there is only what it says: no other real one can be made to fail.
  const failed = new HpcserveError('E_DEVICE_FAILED', { what: 'ggml ended a graph on G with status -1' });
  const openStage = device.openStage.bind(device);
  device.openStage = (...asked) => {
    const opening = openStage(...asked);
    const advance = opening.advance.bind(opening);
    opening.advance = (help) => {
      const stage = advance(help);
      if (stage)
        stage.run = () => {
          throw failed;
        };
      return stage;
    };
    return opening;
  };
  const load = await stageMessage(scratch.path, { begin: 3, end: 6 }, 0);
  port2.postMessage(load);
  const worker = new Worker(coordinator, {
    eval: true,
    workerData: {
      ring: compiledFile('agent/pipeline/ring.js'),
      ...{ listen: load.pipeline!.next, next: load.pipeline!.listen },
      frames: framesOfOneBatch(await model('tiny-llama', 'Q8_0')),
      ...{ port: port2, words, signal: pulse.signal },
    },
    transferList: [port2],
  });
  const came = once(worker, 'message') as Promise<[FrameBytes[]]>;
  try {
    await expect(new ComputeLoop(port1, words, () => device, defaultSharingSettings).run()).rejects.toBe(
      failed,
    );
    const [frames] = await came;
    const last = decodeFrame(Uint8Array.from(frames.at(-1)!));
    expect(metaOf(last, failedMetaSchema)).toMatchObject({ stage: 1, error: { code: 'E_DEVICE_FAILED' } });
  } finally {
    port1.close();
    await worker.terminate();
    await device.close();
  }
});

it('refuses a model that does not fit beside one that waits for stages elsewhere, and does not queue it', async () => {
  await using scratch = await scratchFolder();
  const words = new Int32Array(new SharedArrayBuffer(4 * pulse.words));
  const { port1, port2 } = new MessageChannel();
  const device = new DevicePool(testBackend(), { pool_bytes: 64 * 2 ** 20, threads: 1 });
  const range = { begin: 0, end: 3 };
  const second = await stageMessage(scratch.path, range, 0);
  const waiting = { ...second, pipeline: { ...second.pipeline!, stage: 0 } };
  const path = await model('tiny-llama', 'Q4_0');
  const { pipeline: _, ...whole } = { ...second, name: 'whole', options: engineOptions(path) };
  const openStage = device.openStage.bind(device);
  device.openStage = (...asked) => {
    const opening = openStage(...asked);
    const advance = opening.advance.bind(opening);
    opening.advance = (help) => {
      const stage = advance(help);
      if (!stage) return undefined;
      // From now on it waits for a second stage, which does not come. Others have all that is left.
      expect(device.reserve(device.report().largest_free_bytes, 'scratch', 'others')).toBeDefined();
      port2.postMessage(whole);
      port2.postMessage({ type: 'stop' });
      return stage;
    };
    return opening;
  };
  port2.postMessage(waiting);
  try {
    await new ComputeLoop(port1, words, () => device, defaultSharingSettings).run();
    const told = [];
    for (let next = receiveMessageOnPort(port2); next; next = receiveMessageOnPort(port2))
      told.push(next.message);
    expect(told.filter(({ type }) => type === 'load_failed')).toMatchObject([
      { name: 'whole', error: { code: 'E_POOL_FULL' } },
    ]);
  } finally {
    port1.close();
    await device.close();
  }
});

/** What a coordinator sends until a token of one sequence is to be computed. */
function framesOfOneBatch(path: string): FrameBytes[] {
  const { n_embd, n_layer } = openModelFile(path).model;
  const segment = { past_tokens: 0, rows: 1, blocks: [0], output: 'last', logits: true } as const;
  const batch = encodeBatchMeta({
    times_us: [0, 0].map(() => [0, 0, 0]),
    operators_us: [],
    damaged: [],
    commands: [],
    segments: [{ segment, embeds: false, samples: false }],
  });
  return [
    encodeJsonFrame({ kind: 'open', epoch: 0, number: 0 }, { n_operators: 2 * n_layer + 2, stages: [] }),
    encodeJsonFrame({ kind: 'begin', epoch: 1, number: 0 }, { epoch: 1 }),
    encodeFrame({ kind: 'batch', epoch: 1, number: 1 }, batch, new Float32Array(n_embd)),
  ];
}

/** What has the second of two stages loaded. @param at of its sockets in the folder */
async function stageMessage(folder: string, cut: OperatorRange, at: number): Promise<LoadMessage> {
  const options = engineOptions(await model('tiny-llama', 'Q8_0'), { kv_tokens: 512 });
  return {
    type: 'load',
    name: 'm',
    options: { ...options, stage: cut },
    pipeline: {
      ...{ stage: 1, stages: 2, ...cut, device: 'cpu 0', device_identity: 'here' },
      listen: join(folder, `${at}-1.sock`),
      next: join(folder, `${at}-0.sock`),
    },
    vocabulary: 0n,
    utf8: null as unknown as LoadMessage['utf8'],
    profile_ms: 1,
  };
}

describe('a stage of a layout to come', () => {
  const range = { begin: 3, end: 6 };
  const wide = { begin: 1, end: 6 };
  let folder: string;
  let device: DevicePool;
  let port1: MessagePort;
  let port2: MessagePort;
  const words = new Int32Array(new SharedArrayBuffer(4 * pulse.words));
  const openings: StageOpening[] = [];
  /** Of each load that threads work at. */
  const counters: LoadCounters[] = [];
  const open = UnitLoader.prototype.open;

  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'hpcserve-loop-'));
    ({ port1, port2 } = new MessageChannel());
    device = new DevicePool(testBackend(), { pool_bytes: 256 * 2 ** 20, threads: 1 });
    const openStage = device.openStage.bind(device);
    device.openStage = (...asked) => {
      const opening = openStage(...asked);
      openings.push(opening);
      return opening;
    };
    UnitLoader.prototype.open = function (work) {
      counters.push(new LoadCounters(work.counters));
      return open.call(this, work);
    };
  });
  afterEach(async () => {
    UnitLoader.prototype.open = open;
    openings.length = 0;
    counters.length = 0;
    port1.close();
    await device.close();
    rmSync(folder, { recursive: true });
  });

  function tell(...messages: object[]): void {
    for (const message of messages) port2.postMessage(message);
    Atomics.add(words, pulse.signal, 1);
  }

  const load = (cut: OperatorRange, at: number): Promise<LoadMessage> => stageMessage(folder, cut, at);

  /** Once a stage is there. */
  function onStage(opening: StageOpening, act: (stage: Stage) => void): void {
    const advance = opening.advance.bind(opening);
    opening.advance = (help) => {
      const stage = advance(help);
      if (stage) act(stage);
      return stage;
    };
  }

  async function run(begin: (opening: StageOpening, at: number) => void): Promise<string[]> {
    const openStage = device.openStage.bind(device);
    device.openStage = (...asked) => {
      const opening = openStage(...asked);
      begin(opening, openings.length - 1);
      return opening;
    };
    const loop = new ComputeLoop(port1, words, () => device, defaultSharingSettings);
    await loop.run();
    const told = [];
    for (let next = receiveMessageOnPort(port2); next; next = receiveMessageOnPort(port2))
      told.push((next.message as { type: string }).type);
    return told;
  }

  it('goes when its change is given up: while it loads, where its load hangs, and once it is there', async () => {
    const reports: PoolReport[] = [];
    const freed: number[] = [];
    const waits_ms: number[] = [];
    const prepares = [1, 2].map(async (refactoring) => ({
      type: 'prepare',
      refactoring,
      load: await load(wide, refactoring),
    }));
    const [hangs, comes] = await Promise.all(prepares);
    tell(await load(range, 0));
    await run((opening, at) => {
      if (at === 0)
        onStage(opening, (stage) => {
          const free = stage.free.bind(stage);
          stage.free = () => {
            freed.push(at);
            free();
          };
          reports.push(device.report());
          tell(hangs!);
        });
      else if (at === 1) {
        // A thread of it is in a read.
        counters[1]!.enter();
        const letGo = opening.letGo.bind(opening);
        opening.letGo = () => {
          const began_ms = performance.now();
          const isOver = letGo();
          waits_ms.push(performance.now() - began_ms);
          if (!isOver) return false;
          reports.push(device.report());
          counters[1]!.leave();
          tell(comes!);
          return true;
        };
        // Another change is not meant.
        tell({ type: 'unprepare', name: 'other', refactoring: 1 });
        tell({ type: 'unprepare', name: 'm', refactoring: 9 });
        tell({ type: 'unprepare', name: 'm', refactoring: 1 });
      } else
        onStage(opening, (stage) => {
          const free = stage.free.bind(stage);
          stage.free = () => {
            freed.push(at);
            free();
            reports.push(device.report());
          };
          tell({ type: 'unprepare', name: 'm', refactoring: 2 }, { type: 'stop' });
        });
    });
    const [before, abandoned, after] = reports;
    expect(before).toMatchObject({ lost_bytes: 0 });
    // Nobody waited for the thread.
    expect(Math.max(...waits_ms)).toBeLessThan(200);
    expect(waits_ms.length).toBeGreaterThan(2);
    expect(abandoned!.lost_bytes).toBeGreaterThan(0);
    expect(abandoned!.kv_bytes).toBe(before!.kv_bytes);
    // What hung is free again once it hangs no more, and the stage that serves went last.
    expect(after).toMatchObject({
      lost_bytes: 0,
      kv_bytes: before!.kv_bytes,
      weights_bytes: before!.weights_bytes,
    });
    expect(freed).toEqual([2, 0]);
  });

  it('does not come before the stage that the device is loaded with, and takes nothing away from that', async () => {
    tell(
      await load(range, 0),
      { type: 'prepare', refactoring: 1, load: await load(wide, 1) },
      { type: 'unprepare', name: 'm', refactoring: 1 },
    );
    const timer = setTimeout(() => tell({ type: 'stop' }), 10_000);
    const told = await run((opening) => onStage(opening, () => tell({ type: 'stop' })));
    clearTimeout(timer);
    expect(openings).toHaveLength(1);
    expect(told).toContain('loaded');
    expect(told).not.toContain('load_failed');
  });
});
