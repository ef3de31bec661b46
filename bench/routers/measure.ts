/** The measurements, each of all contenders in turn, round by round. */
import { saturate } from '../gateway/load.ts';
import { memoryOfStreams } from '../gateway/many-streams.ts';
import { median } from '../gateway/median.ts';
import { atRate, compileOpenLoop } from '../gateway/open-loop.ts';
import { pacedRequest, requestBody } from '../gateway/requests.ts';
import { readStreams } from '../gateway/sse.ts';
import type { GatewayStage } from '../gateway/stage.ts';
import { streamLoads, warmUps } from '../gateway/streams.ts';
import type { Contender, Target } from './contender.ts';
import { untilAnswered } from './contenders.ts';
import { roundsOf } from './rounds.ts';
import type { Column, Metric } from './side-by-side.ts';

const saturation = { connections: 64, duration_s: 2 };
const duration_s = 4;
/**
 * All are open for seconds. A gateway that keeps the head of an answer until its first event has them begin with the
 * beat of their upstream, `opening` at a time.
 */
const many = { streams: 2000, events: 45, pause_ms: 1000, opening: 64 };

export interface Scene {
  stage: GatewayStage;
  contenders: readonly Contender[];
  rounds: number;
  log: (line: string) => void;
}

const requestsMetric: Metric = {
  what: `requests per second on one core, ${saturation.connections} connections`,
  short: 'requests',
  unit: '1/s',
  better: 'more',
};
const requestCpuMetric: Metric = {
  what: 'CPU time per request',
  short: 'a request',
  unit: 'µs',
  better: 'less',
};

/** Requests per second, and CPU time of each. Behind an agent the engine is what is slow: its rate says nothing. */
export async function measureRequests(scene: Scene): Promise<{ rate: Column; cpu: Column }> {
  const { stage, log } = scene;
  const [rate, cpu] = await roundsOf({ ...scene, warm_ups: warmUps }, async ({ name, instant }) => {
    const before_us = instant.cpu_us();
    const load = loadOf(stage, instant);
    const { requests, requests_per_s } = await saturate(stage.programs.wrk, load, saturation);
    const each_us = (instant.cpu_us() - before_us) / requests;
    log(`${name}: ${requests_per_s.toFixed(0)} requests/s, ${each_us.toFixed(1)} µs each`);
    return [requests_per_s, each_us];
  });
  for (const { name, cpu_only } of scene.contenders) if (cpu_only) rate!.delete(name);
  return { rate: { metric: requestsMetric, rounds: rate! }, cpu: { metric: requestCpuMetric, rounds: cpu! } };
}

/** CPU time per event, for each number of streams. */
export async function measureEvents(scene: Scene): Promise<{ streams: number; cpu: Column }[]> {
  const columns: { streams: number; cpu: Column }[] = [];
  for (const { streams, ...pace } of streamLoads) {
    const [rounds] = await roundsOf({ ...scene, warm_ups: warmUps }, async ({ name, paced }) => {
      const before_us = paced.cpu_us();
      const body = pacedRequest(paced.model, pace);
      const { events } = await readStreams(paced.url, scene.stage.key, body, streams);
      const expected = streams * (pace.events + 1);
      if (events !== expected)
        throw new Error(`${events} events came through ${name} instead of ${expected}`);
      const each_us = (paced.cpu_us() - before_us) / events;
      scene.log(`${streams} streams, ${name}: ${each_us.toFixed(1)} µs an event`);
      return [each_us];
    });
    const metric: Metric = {
      what: `CPU time per SSE event, ${streams} streams, an event each ${pace.pause_ms} ms`,
      short: `an event of ${streams}`,
      unit: 'µs',
      better: 'less',
    };
    columns.push({ streams, cpu: { metric, rounds: rounds! } });
  }
  return columns;
}

const percentiles = [
  ['p50', 'p50_ms'],
  ['p99', 'p99_ms'],
  ['p99.9', 'p999_ms'],
] as const;

/**
 * Added to what the upstream takes by itself at the same rate: p50, p99 and p99.9 of responses.
 * @param rateOf requests per second for each contender
 */
export async function measureLatency(
  scene: Scene,
  at: string,
  rateOf: (contender: Contender) => number,
): Promise<Column[]> {
  const { stage, log } = scene;
  const openLoop = compileOpenLoop(stage.folder);
  const rounds = await roundsOf({ ...scene, warm_ups: 0 }, async (contender) => {
    const load = { rate_per_s: rateOf(contender), duration_s };
    const direct = await atRate(
      openLoop,
      loadOf(stage, { ...contender.instant, url: stage.plainUpstreamUrl }),
      load,
    );
    const through = await atRate(openLoop, loadOf(stage, contender.instant), load);
    const added = percentiles.map(([, name]) => through[name] - direct[name]);
    log(
      `${contender.name} at ${load.rate_per_s.toFixed(0)}/s: ${added.map((ms) => ms.toFixed(3)).join(', ')} ms added`,
    );
    return added;
  });
  return percentiles.map(([name], index) => ({
    metric: { what: `added ${name} at ${at}`, short: `+${name}`, unit: 'ms', better: 'less' },
    rounds: rounds[index]!,
  }));
}

/** Half of what each one can do, requests per second. */
export function halfOf({ rounds }: Column): (contender: Contender) => number {
  return ({ name }) => {
    const own = rounds.get(name);
    if (own === undefined) throw new Error('its requests per second are not known');
    return median(own) / 2;
  };
}

/** Memory with many streams that flow. */
export async function measureMemory({ stage, contenders, log }: Scene): Promise<Column> {
  const rounds = new Map<string, number[]>();
  for (const { name, paced, cpu_only } of contenders) {
    // nginx is several processes.
    if (cpu_only || name === 'nginx') continue;
    const body = pacedRequest(paced.model, many);
    const seen = await memoryOfStreams(paced.pid, paced.url, stage.key, body, many);
    if (seen.open_max !== many.streams)
      throw new Error(`only ${seen.open_max} of ${many.streams} streams were open through ${name}`);
    rounds.set(name, [seen.pss_bytes / 1e6]);
    log(`${name}: ${(seen.pss_bytes / 1e6).toFixed(0)} MB, before ${(seen.idle_bytes / 1e6).toFixed(0)} MB`);
  }
  const what = `memory with ${many.streams} streams that flow (PSS)`;
  return { metric: { what, short: `${many.streams} streams`, unit: 'MB', better: 'less' }, rounds };
}

/** From the start of its process to its first answer, ms. */
export async function measureStart(scene: Scene): Promise<Column> {
  const contenders = scene.contenders.filter(({ restart }) => restart !== undefined);
  const [rounds] = await roundsOf(
    { ...scene, contenders, warm_ups: 0 },
    async ({ name, instant, restart }) => {
      const began_ms = await restart!();
      await untilAnswered(instant.url, scene.stage.key);
      const ms = performance.now() - began_ms;
      scene.log(`${name}: first answer after ${ms.toFixed(0)} ms`);
      return [ms];
    },
  );
  return {
    metric: { what: 'time from start to first answer', short: 'first answer', unit: 'ms', better: 'less' },
    rounds: rounds!,
  };
}

function loadOf(
  { folder, key, loadCores, programs }: GatewayStage,
  { url, model }: Pick<Target, 'url' | 'model'>,
) {
  const body = requestBody.replace('"bench"', JSON.stringify(model));
  return { folder, key, url, body, cores: loadCores, taskset: programs.taskset };
}
