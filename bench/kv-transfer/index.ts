/** How fast bytes of a pool come into another worker's, and what that costs the sender, beside plain C. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fabricAbsence } from '../../native/fabric/fabric.ts';
import { canMove } from '../../native/fabric/mover.ts';
import { compileProgram } from '../compile.ts';
import { MissingNeed } from '../need.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { type Contestant, type Network, ourFabric, ourSockets, plainC, Target } from './contestants.ts';
import { openNamespace } from './namespace.ts';
import { memory_bytes, type Round, sizeName, type Timed } from './rounds.ts';
import { benchMemory } from './target.ts';

export const kvTransferBench: Bench = {
  name: 'kv-transfer',
  describe:
    'bytes of a pool brought to another process by sendfile, TCP and libfabric, beside send() in C and memcpy',
  run,
};

const kib = 1024;
const mib = 1024 * kib;
const sizes = [kib, 64 * kib, mib, 16 * mib, 256 * mib, memory_bytes];
const piece_bytes = 64 * kib;
/** Bars hold from here on. */
const barred_bytes = mib;
/** Moved at least between two looks at the clock. Lower: the clock and the scheduler are measured; higher: longer. */
const round_bytes_min = 64 * mib;
/** Of a round of small transfers. */
const transfers_max = 1000;
const pairs = 10;

interface Figures {
  gb_per_s: number;
  cpu_s_per_gb: number;
}

async function run({ log }: BenchOptions): Promise<BenchResult[]> {
  if (!canMove())
    throw new MissingNeed('native/fabric was not compiled', 'install a C compiler, then build again');
  const absent = fabricAbsence();
  if (absent !== undefined)
    throw new MissingNeed(`there is no libfabric: ${absent}`, 'install libfabric-dev, then build again');
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-kv-transfer-'));
  const namespace = openNamespace();
  try {
    const program = compileProgram('bench/kv-transfer/peer.c', folder);
    const memory = benchMemory();
    const loopback: Network = { name: 'on loopback', address: '127.0.0.1', through: [] };
    const results = await measureNetwork(program, memory, loopback, '127.0.0.1', log);
    results.push(...(await measureShared(program, memory, loopback, log)));
    if (namespace)
      results.push(...(await measureNetwork(program, memory, namespace.network, namespace.source, log)));
    else log('no network namespaces: they need root and ip');
    return results;
  } finally {
    namespace?.close();
    rmSync(folder, { recursive: true });
  }
}

type Memory = ReturnType<typeof benchMemory>;

async function measureNetwork(
  program: string,
  memory: Memory,
  network: Network,
  source: string,
  log: (line: string) => void,
): Promise<BenchResult[]> {
  const target = await Target.start(network);
  const sockets = await ourSockets(memory, target, network.address);
  const send = await plainC(program, network);
  const sendfile = sockets({ sendfile: true, checksum: false });
  const contestants = {
    send,
    sendfile,
    checked: sockets({ sendfile: true, checksum: true }),
    write: sockets({ sendfile: false, checksum: false }),
    fabric: await ourFabric(memory, target, 'tcp', source),
  };
  const results: BenchResult[] = [];
  try {
    for (const round of rounds()) {
      const figures = await compare(contestants, round);
      const what = `${describe(round)} ${network.name}`;
      log(
        `${what}: ${Object.entries(figures)
          .map(([name, { gb_per_s }]) => `${name} ${gb_per_s.toFixed(2)}`)
          .join(', ')}`,
      );
      const barred = round.bytes >= barred_bytes;
      results.push(
        rate(`sendfile, ${what}`, figures.sendfile, 'send() in C', figures.send, barred ? 1 : undefined),
        cost(`sender’s CPU by sendfile, ${what}`, figures.sendfile, 'send() in C', figures.send, barred),
        rate(`sendfile with checksums on both sides, ${what}`, figures.checked, 'send() in C', figures.send),
        rate(`ordinary writes, ${what}`, figures.write, 'send() in C', figures.send),
        rate(
          `libfabric over tcp, delivered, ${what}`,
          figures.fabric,
          'send() in C',
          figures.send,
          barred ? 0.9 : undefined,
        ),
        cost(
          `sender’s CPU by libfabric over tcp, ${what}`,
          figures.fabric,
          'send() in C',
          figures.send,
          false,
        ),
      );
    }
  } finally {
    await send.close();
    await sendfile.close();
    await contestants.fabric.close();
    target.end();
  }
  return results;
}

async function measureShared(
  program: string,
  memory: Memory,
  network: Network,
  log: (line: string) => void,
): Promise<BenchResult[]> {
  const target = await Target.start(network);
  const contestants = {
    memcpy: await plainC(program, undefined),
    shm: await ourFabric(memory, target, 'shm', network.address),
  };
  const results: BenchResult[] = [];
  try {
    for (const round of rounds()) {
      const { shm, memcpy } = await compare(contestants, round);
      const what = `${describe(round)} within the node`;
      log(`${what}: shm ${shm.gb_per_s.toFixed(2)}, memcpy ${memcpy.gb_per_s.toFixed(2)}`);
      const bar = round.bytes >= barred_bytes ? 0.8 : undefined;
      results.push(
        rate(`libfabric over shm, ${what}`, shm, 'memcpy', memcpy, bar),
        cost(`sender’s CPU by libfabric over shm, ${what}`, shm, 'memcpy', memcpy, false),
      );
    }
  } finally {
    await contestants.memcpy.close();
    await contestants.shm.close();
    target.end();
  }
  return results;
}

function* rounds(): Generator<Round> {
  for (const bytes of sizes) {
    const transfers = Math.min(transfers_max, Math.max(1, Math.ceil(round_bytes_min / bytes)));
    yield { bytes, piece_bytes: bytes, transfers };
    if (bytes >= barred_bytes) yield { bytes, piece_bytes, transfers };
  }
}

function describe({ bytes, piece_bytes: piece }: Round): string {
  return piece === bytes ? sizeName(bytes) : `${sizeName(bytes)} in pieces of ${sizeName(piece)}`;
}

/** All of them once before, then alternating; medians. */
async function compare<Name extends string>(
  contestants: Record<Name, Contestant>,
  round: Round,
): Promise<Record<Name, Figures>> {
  const names = Object.keys(contestants) as Name[];
  const timed = Object.fromEntries(names.map((name) => [name, [] as Timed[]])) as Record<Name, Timed[]>;
  for (let pair = -1; pair < pairs; pair++)
    for (const name of pair % 2 === 0 ? names : [...names].reverse()) {
      const result = await contestants[name].run(round);
      if (pair >= 0) timed[name].push(result);
    }
  const gb = (round.bytes * round.transfers) / 1e9;
  const figures = names.map((name) => {
    const wall_s = median(timed[name].map(({ wall_ms }) => wall_ms)) / 1000;
    const cpu_s = median(timed[name].map(({ cpu_ms }) => cpu_ms)) / 1000;
    return [name, { gb_per_s: gb / wall_s, cpu_s_per_gb: cpu_s / gb }];
  });
  return Object.fromEntries(figures) as Record<Name, Figures>;
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

function rate(what: string, ours: Figures, peer: string, theirs: Figures, bar?: number): BenchResult {
  const ratio = ours.gb_per_s / theirs.gb_per_s;
  return {
    what,
    unit: 'GB/s',
    ours: ours.gb_per_s,
    peer,
    theirs: theirs.gb_per_s,
    ratio,
    bar: bar === undefined ? '' : `ratio ≥ ${bar}`,
    holds: bar === undefined ? null : ratio >= bar,
  };
}

function cost(what: string, ours: Figures, peer: string, theirs: Figures, barred: boolean): BenchResult {
  const ratio = theirs.cpu_s_per_gb / ours.cpu_s_per_gb;
  return {
    what,
    unit: 's/GB',
    ours: ours.cpu_s_per_gb,
    peer,
    theirs: theirs.cpu_s_per_gb,
    ratio,
    bar: barred ? 'ratio > 1' : '',
    holds: barred ? ratio > 1 : null,
  };
}
