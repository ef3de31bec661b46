/**
 * Frames from one stage's process to the next one's, one on its way at a time, alternating with what they would take
 * else. On a node: as rings pass them (from 1 MiB on by memory that both have mapped) beside a unix socket alone.
 * Between nodes: by libfabric beside both agents. Arguments: `--rounds N` (default 5), `--provider NAME` of libfabric
 * (default tcp).
 */
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { encodeFrame } from '../../agent/pipeline/frame.ts';
import { fabricAbsence } from '../../native/fabric/fabric.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { openBetween, openWithin, type Way } from './ways.ts';

const mib = 2 ** 20;
/** Of a round of one size. */
const round_bytes = 256 * mib;
/** A ring's first frames go over its socket, until the other end has mapped the memory. */
const warm_frames = 8;

/** Two ways beside each other. */
interface Pair {
  where: string;
  sizes_bytes: readonly number[];
  peer: string;
  open(folder: string): Promise<[Way, Way]>;
}

const within: Pair = {
  where: '',
  sizes_bytes: [mib / 4, mib, 4 * mib, 16 * mib],
  peer: 'a unix socket alone',
  open: async (folder) => [await openWithin('ring', folder), await openWithin('socket', folder)],
};

const between = (provider: string): Pair => ({
  where: `between nodes by ${provider}, `,
  sizes_bytes: [mib / 4, mib, 4 * mib, 16 * mib],
  peer: 'through both agents',
  open: async (folder) => [await openBetween(folder, provider), await openBetween(folder)],
});

interface Taken {
  /** Of a frame, until the answer. */
  ms: number;
  /** Of all processes. */
  cpu_ms: number;
}

async function cpu_ms({ children }: Way): Promise<number> {
  const theirs = await Promise.all(
    children.map(async (child) => {
      child.send('cpu');
      return ((await once(child, 'message')) as [NodeJS.CpuUsage])[0];
    }),
  );
  return [process.cpuUsage(), ...theirs].reduce((sum, { user, system }) => sum + user + system, 0) / 1000;
}

async function round(way: Way, bytes: number): Promise<Taken> {
  const floats = new Float32Array(bytes / 4);
  const frame = encodeFrame({ kind: 'batch', epoch: 1, number: 1 }, new Uint8Array(0), floats);
  for (let count = 0; count < warm_frames; count++) await way.pass(frame);
  const frames = round_bytes / bytes;
  const before_ms = await cpu_ms(way);
  const began_ms = performance.now();
  for (let count = 0; count < frames; count++) await way.pass(frame);
  const ms = (performance.now() - began_ms) / frames;
  return { ms, cpu_ms: ((await cpu_ms(way)) - before_ms) / frames };
}

const median = (values: readonly number[]): number => values.toSorted((a, b) => a - b)[values.length >> 1]!;

async function compare(
  { where, sizes_bytes, peer }: Pair,
  ways: readonly [Way, Way],
  rounds: number,
  log: BenchOptions['log'],
): Promise<BenchResult[]> {
  const results: BenchResult[] = [];
  for (const bytes of sizes_bytes) {
    const taken: [Taken[], Taken[]] = [[], []];
    for (let count = 0; count < rounds; count++)
      for (const [index, way] of ways.entries()) taken[index]!.push(await round(way, bytes));
    for (const unit of ['ms', 'cpu_ms'] as const) {
      const [ours, theirs] = taken.map((each) => median(each.map((one) => one[unit]))) as [number, number];
      const what = `${where}frame of ${bytes / mib} MiB${unit === 'ms' ? '' : ', CPU of all processes'}`;
      log(`${what}: ${ours.toFixed(2)} / ${theirs.toFixed(2)} ms`);
      results.push({ what, unit: 'ms', ours, peer, theirs, ratio: theirs / ours, bar: '', holds: null });
    }
  }
  return results;
}

async function run({ args, log }: BenchOptions): Promise<BenchResult[]> {
  const { values } = parseArgs({
    args: [...args],
    options: { rounds: { type: 'string', default: '5' }, provider: { type: 'string', default: 'tcp' } },
  });
  const results: BenchResult[] = [];
  const pairs = [within];
  const lacking =
    process.getuid?.() === 0 ? fabricAbsence() : 'processes with process ids of their own need root';
  if (lacking === undefined) pairs.push(between(values.provider));
  else log(`between nodes: left out, since ${lacking}`);
  for (const pair of pairs) {
    const folder = mkdtempSync(join(tmpdir(), 'hpcf-'));
    let ways: [Way, Way] | undefined;
    try {
      ways = await pair.open(folder);
      results.push(...(await compare(pair, ways, Number(values.rounds), log)));
    } finally {
      for (const { children, close } of ways ?? []) {
        close();
        for (const child of children) child.kill('SIGKILL');
      }
      rmSync(folder, { recursive: true, force: true });
    }
  }
  return results;
}

export const framesBench: Bench = {
  name: 'frames',
  describe: 'frames between the stages of a node and of two, by rings and by what they would take else',
  run,
};
