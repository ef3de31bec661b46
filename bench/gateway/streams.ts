/** CPU time of each event of a stream that goes through the gateway, and of a gateway through which nothing goes. */
import { setTimeout as delay } from 'node:timers/promises';
import type { BenchResult } from '../result.ts';
import { median } from './median.ts';
import type { Pinned } from './process.ts';
import type { Pace } from './requests.ts';
import { readStreams } from './sse.ts';

/** Streams at a time, and what each of them sends. Behind a node agent, one iteration of all of them is one record. */
export const streamLoads: readonly (Pace & { streams: number })[] = [
  { streams: 32, events: 400, pause_ms: 2 },
  { streams: 256, events: 100, pause_ms: 20 },
  { streams: 1, events: 400, pause_ms: 10 },
];
/** Of gateways that run for weeks, compilers have done their work. */
export const warmUps = 3;
const rounds = 5;
const rest_s = 20;

type Proxy = Pinned & { url: string };

export interface StreamStage {
  gateway: Proxy;
  nginxStream: Proxy;
  key: string;
}

/** Models of the paced upstreams: the same streams, by a session with channels, and by one of HTTP/1.1 alone. */
export const pacedModels = { channels: 'bench-stream', plain: 'bench-plain' } as const;

export async function measureStreams(
  { gateway, nginxStream, key }: StreamStage,
  bodyOf: (model: string, pace: Pace) => string,
  log: (line: string) => void,
): Promise<BenchResult[]> {
  const results: BenchResult[] = [];
  for (const { streams, ...pace } of streamLoads) {
    const measure = async (proxy: Proxy, model: string): Promise<number> => {
      const before_us = proxy.cpu_us();
      const { events } = await readStreams(proxy.url, key, bodyOf(model, pace), streams);
      const expected = streams * (pace.events + 1);
      if (events !== expected)
        throw new Error(`${events} events arrived from ${proxy.url} instead of ${expected}`);
      return (proxy.cpu_us() - before_us) / events;
    };
    const ways = {
      channels: () => measure(gateway, pacedModels.channels),
      plain: () => measure(gateway, pacedModels.plain),
      nginx: () => measure(nginxStream, pacedModels.plain),
    };
    const names = Object.keys(ways) as (keyof typeof ways)[];
    const seen: Record<keyof typeof ways, number[]> = { channels: [], plain: [], nginx: [] };
    for (let turn = 0; turn < warmUps; turn++) for (const name of names) await ways[name]();
    for (let round = 0; round < rounds; round++) {
      for (const name of names) seen[name].push(await ways[name]());
      log(
        `${streams} streams: ${names.map((name) => `${name} ${seen[name][round]!.toFixed(1)} µs`).join(', ')} an event`,
      );
    }
    const [ours, nginx] = [median(seen.channels), median(seen.nginx)];
    const what = `CPU time per SSE event, ${streams} streams, an event each ${pace.pause_ms} ms`;
    const row = { unit: 'µs', bar: '', holds: null };
    results.push(
      { ...row, what, ours, peer: 'nginx', theirs: nginx, ratio: nginx / ours },
      {
        ...row,
        what: `the same, ${streams} streams, beside one connection a stream`,
        ours,
        peer: 'HTTP/1.1',
        theirs: median(seen.plain),
        ratio: median(seen.plain) / ours,
      },
    );
  }
  return results;
}

/** What a gateway costs that has sessions, and no requests. */
export async function measureRest(
  { gateway }: StreamStage,
  log: (line: string) => void,
): Promise<BenchResult[]> {
  await delay(2000);
  const before_us = gateway.cpu_us();
  const began_ms = performance.now();
  await delay(rest_s * 1000);
  const percent = (gateway.cpu_us() - before_us) / (performance.now() - began_ms) / 10;
  log(`at rest: ${percent.toFixed(2)}% of a core`);
  return [
    {
      what: 'CPU of a gateway at rest, of one core',
      unit: '%',
      ours: percent,
      peer: '',
      theirs: null,
      ratio: null,
      bar: '< 0.5%',
      holds: percent < 0.5,
    },
  ];
}
