/**
 * Frames from one stage's process to the next one's on a node, as rings pass them (from 1 MiB on by memory that both
 * have mapped) beside a unix socket alone, one on its way at a time, alternating. Arguments: `--rounds N` (default 5).
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { createConnection } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { encodeFrame, type FrameBytes } from '../../agent/pipeline/frame.ts';
import { FrameAssembler } from '../../agent/pipeline/frame-assembler.ts';
import { Ring } from '../../agent/pipeline/ring.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import type { FarEnd } from './far-end.ts';

const mib = 2 ** 20;
const sizes_bytes = [mib / 4, mib, 4 * mib, 16 * mib];
/** Of a round of one size. */
const round_bytes = 256 * mib;
/** A ring's first frames go over its socket, until the other end has mapped the memory. */
const warm_frames = 8;

/** One end, to which a frame is sent and which says when the other one has it. */
interface Way {
  child: ChildProcess;
  pass(frame: FrameBytes): Promise<void>;
  close(): void;
}

async function openWay(way: FarEnd['way'], folder: string): Promise<Way> {
  const [listen, next] = ['far', 'near'].map((end) => join(folder, `${way}-${end}`)) as [string, string];
  const child = fork(fileURLToPath(new URL('./far-end.js', import.meta.url)));
  child.send({ way, listen, next } satisfies FarEnd);
  let arrived = (): void => undefined;
  const passing = (send: (frame: FrameBytes) => void) => (frame: FrameBytes) =>
    new Promise<void>((resolve) => {
      arrived = resolve;
      send(frame);
    });
  if (way === 'ring') {
    const ring = await new Promise<Ring>((resolve) => {
      const made = new Ring(next, listen, ({ type }) => {
        if (type === 'up') setImmediate(() => resolve(made));
        if (type === 'frame') arrived();
      });
    });
    return { child, pass: passing((frame) => ring.send(frame)), close: () => ring.close() };
  }
  while (!existsSync(listen)) await delay(10);
  const socket = createConnection(listen);
  await once(socket, 'connect');
  const assembler = new FrameAssembler();
  socket.on('data', (chunk) => assembler.take(chunk, () => arrived()));
  return { child, pass: passing((frame) => void socket.write(frame)), close: () => socket.destroy() };
}

interface Taken {
  /** Of a frame, until the answer. */
  ms: number;
  /** Of both processes. */
  cpu_ms: number;
}

async function cpu_ms({ child }: Way): Promise<number> {
  child.send('cpu');
  const [theirs] = (await once(child, 'message')) as [NodeJS.CpuUsage];
  const ours = process.cpuUsage();
  return (ours.user + ours.system + theirs.user + theirs.system) / 1000;
}

async function round(way: Way, bytes: number): Promise<Taken> {
  const frame = encodeFrame(
    { kind: 'batch', epoch: 1, number: 1 },
    new Uint8Array(0),
    new Float32Array(bytes / 4),
  );
  for (let count = 0; count < warm_frames; count++) await way.pass(frame);
  const frames = round_bytes / bytes;
  const before_ms = await cpu_ms(way);
  const began_ms = performance.now();
  for (let count = 0; count < frames; count++) await way.pass(frame);
  const ms = (performance.now() - began_ms) / frames;
  return { ms, cpu_ms: ((await cpu_ms(way)) - before_ms) / frames };
}

const median = (values: readonly number[]): number => values.toSorted((a, b) => a - b)[values.length >> 1]!;

async function run({ args, log }: BenchOptions): Promise<BenchResult[]> {
  const { values } = parseArgs({ args: [...args], options: { rounds: { type: 'string', default: '5' } } });
  const folder = mkdtempSync(join(tmpdir(), 'hpcf-'));
  const ways: Way[] = [];
  try {
    for (const way of ['ring', 'socket'] as const) ways.push(await openWay(way, folder));
    const results: BenchResult[] = [];
    for (const bytes of sizes_bytes) {
      const taken: [Taken[], Taken[]] = [[], []];
      for (let count = 0; count < Number(values.rounds); count++)
        for (const [index, way] of ways.entries()) taken[index]!.push(await round(way, bytes));
      for (const unit of ['ms', 'cpu_ms'] as const) {
        const [ours, theirs] = taken.map((each) => median(each.map((one) => one[unit]))) as [number, number];
        const what = `frame of ${bytes / mib} MiB${unit === 'ms' ? '' : ', CPU of both processes'}`;
        log(`${what}: ${ours.toFixed(2)} / ${theirs.toFixed(2)} ms`);
        const peer = 'a unix socket alone';
        results.push({ what, unit: 'ms', ours, peer, theirs, ratio: theirs / ours, bar: '', holds: null });
      }
    }
    return results;
  } finally {
    for (const { child, close } of ways) {
      close();
      child.kill('SIGKILL');
    }
    rmSync(folder, { recursive: true, force: true });
  }
}

export const framesBench: Bench = {
  name: 'frames',
  describe: 'frames between the stages of a node, by rings and by a unix socket alone',
  run,
};
