/** A gateway of several processes beside one of a single process: requests per second, and what each costs. */
import type { BenchResult } from '../result.ts';
import { type Load, saturate } from './load.ts';
import { median } from './median.ts';
import type { Pinned } from './process.ts';
import type { Pace } from './requests.ts';
import { readStreams } from './sse.ts';
import { measureRest, pacedModels, warmUps } from './streams.ts';

type Gateway = Pinned & { url: string };

export interface ProcessesStage {
  gateway: Gateway;
  /** The one of several processes, and how many relay requests in it. */
  several: Gateway & { processes: number };
  key: string;
  programs: { wrk: string };
  /** The gateways have cores that the load does not use. */
  hasCores: boolean;
}

const rounds = 7;
const saturation = { connections: 64, duration_s: 2 };
const streamLoads: readonly (Pace & { streams: number })[] = [
  { streams: 32, events: 400, pause_ms: 2 },
  { streams: 256, events: 100, pause_ms: 20 },
];
const streamRounds = 3;

/** How many processes relay requests, from the arguments of the bench; undefined where nobody asks. */
export function processesOf(text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  const processes = Number(text);
  if (!Number.isInteger(processes) || processes < 2) throw new Error('--processes takes a number from 2 on');
  return processes;
}

/**
 * Which cores whom. Where there is one for each process and one for the load, the gateways have theirs alone; else all
 * share all of them.
 */
export function coresFor(
  processes: number,
  cores: number,
): { processes: number; one: number[]; several: number[]; load: number[]; hasCores: boolean } {
  const all = Array.from({ length: cores }, (_, core) => core);
  if (cores < processes + 2) return { processes, one: all, several: all, load: all, hasCores: false };
  return {
    processes,
    one: all.slice(-1),
    several: all.slice(-(processes + 1)),
    load: all.slice(0, -(processes + 1)),
    hasCores: true,
  };
}

export async function measureProcesses(
  stage: ProcessesStage,
  loadOf: (url: string) => Load,
  bodyOf: (model: string, pace: Pace) => string,
  log: (line: string) => void,
): Promise<BenchResult[]> {
  const results = await measureRequests(stage, loadOf, log);
  results.push(...(await measureEvents(stage, bodyOf, log)));
  const { several, gateway } = stage;
  const [rest] = await measureRest({ ...stage, gateway: several, nginxStream: gateway }, log);
  return [...results, { ...rest!, what: `${nameOf(several)} at rest, of one core`, bar: '', holds: null }];
}

const nameOf = ({ processes }: ProcessesStage['several']): string => `a gateway with ${processes} workers`;

async function measureRequests(
  { gateway, several, programs, hasCores }: ProcessesStage,
  loadOf: (url: string) => Load,
  log: (line: string) => void,
): Promise<BenchResult[]> {
  const measure = async (one: Gateway): Promise<{ rps: number; cpu_us: number }> => {
    const before_us = one.cpu_us();
    const { requests, requests_per_s } = await saturate(programs.wrk, loadOf(one.url), saturation);
    return { rps: requests_per_s, cpu_us: (one.cpu_us() - before_us) / requests };
  };
  const seen: Record<'one' | 'several', { rps: number; cpu_us: number }[]> = { one: [], several: [] };
  for (let round = -warmUps; round < rounds; round++) {
    const one = await measure(gateway);
    const more = await measure(several);
    if (round < 0) continue;
    seen.one.push(one);
    seen.several.push(more);
    log(
      `round ${round + 1}: one process ${one.rps.toFixed(0)}/s ${one.cpu_us.toFixed(1)} µs, ${several.processes} workers ${more.rps.toFixed(0)}/s ${more.cpu_us.toFixed(1)} µs`,
    );
  }
  const of = (which: 'one' | 'several', what: 'rps' | 'cpu_us'): number =>
    median(seen[which].map((each) => each[what]));
  const ratio = median(seen.several.map(({ rps }, round) => rps / seen.one[round]!.rps));
  const wanted = 0.9 * several.processes;
  const where = hasCores ? '' : ', on cores that the load shares';
  const [ours_us, theirs_us] = [of('several', 'cpu_us'), of('one', 'cpu_us')];
  return [
    {
      what: `requests per second of ${nameOf(several)}, ${saturation.connections} connections${where}`,
      unit: '1/s',
      ours: of('several', 'rps'),
      peer: 'one process',
      theirs: of('one', 'rps'),
      ratio,
      bar: hasCores ? `ratio ≥ ${wanted}` : '',
      holds: hasCores ? ratio >= wanted : null,
    },
    {
      what: 'CPU time per request, of all its processes',
      unit: 'µs',
      ours: ours_us,
      peer: 'one process',
      theirs: theirs_us,
      ratio: theirs_us / ours_us,
      bar: '',
      holds: null,
    },
  ];
}

async function measureEvents(
  { gateway, several, key }: ProcessesStage,
  bodyOf: (model: string, pace: Pace) => string,
  log: (line: string) => void,
): Promise<BenchResult[]> {
  const results: BenchResult[] = [];
  for (const { streams, ...pace } of streamLoads) {
    const measure = async (one: Gateway): Promise<number> => {
      const before_us = one.cpu_us();
      const { events } = await readStreams(one.url, key, bodyOf(pacedModels.channels, pace), streams);
      const expected = streams * (pace.events + 1);
      if (events !== expected) throw new Error(`${events} events arrived instead of ${expected}`);
      return (one.cpu_us() - before_us) / events;
    };
    const ours: number[] = [];
    const theirs: number[] = [];
    await measure(gateway);
    await measure(several);
    for (let round = 0; round < streamRounds; round++) {
      theirs.push(await measure(gateway));
      ours.push(await measure(several));
      log(
        `${streams} streams: ${theirs[round]!.toFixed(1)} µs an event, ${ours[round]!.toFixed(1)} µs with workers`,
      );
    }
    results.push({
      what: `CPU time per SSE event, ${streams} streams, an event each ${pace.pause_ms} ms`,
      unit: 'µs',
      ours: median(ours),
      peer: 'one process',
      theirs: median(theirs),
      ratio: median(theirs) / median(ours),
      bar: '',
      holds: null,
    });
  }
  return results;
}
