import { execFile } from 'node:child_process';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { instantAnswer } from './requests.ts';

const run = promisify(execFile);

export interface Load {
  folder: string;
  url: string;
  key: string;
  body: string;
  cores: readonly number[];
  taskset: string;
}

export interface Saturation {
  requests: number;
  requests_per_s: number;
}

/** As many requests as `connections` connections carry, one after another each. */
export async function saturate(
  wrk: string,
  load: Load,
  { connections, duration_s }: { connections: number; duration_s: number },
): Promise<Saturation> {
  const script = join(load.folder, 'post.lua');
  // The key is a throw-away one of this run; lua quoting of both strings is that of JSON here.
  writeFileSync(
    script,
    [
      'wrk.method = "POST"',
      'wrk.headers["content-type"] = "application/json"',
      `wrk.headers["authorization"] = ${JSON.stringify(`Bearer ${load.key}`)}`,
      `wrk.body = ${JSON.stringify(load.body)}`,
      'done = function(summary, latency, requests)',
      '  local e = summary.errors',
      '  io.write(string.format("RESULT %d %d %d %d\\n", summary.requests, summary.duration, summary.bytes,',
      '    e.connect + e.read + e.write + e.status + e.timeout))',
      'end',
    ].join('\n'),
    { mode: 0o600 },
  );
  const { stdout } = await run(load.taskset, [
    '-c',
    load.cores.join(','),
    wrk,
    '-t1',
    `-c${connections}`,
    `-d${duration_s}`,
    // An answer that is slow is no failure: on a machine with other work the first ones take seconds.
    '--timeout=30s',
    '-s',
    script,
    load.url,
  ]);
  const match = /RESULT (\d+) (\d+) (\d+) (\d+)/.exec(stdout);
  if (!match) throw new Error(`wrk printed no result: ${stdout}`);
  const [requests, duration_us, bytes, errors] = match.slice(1).map(Number) as [
    number,
    number,
    number,
    number,
  ];
  if (errors > 0) throw new Error(`${errors} of ${requests} requests to ${load.url} failed`);
  // Some say what went wrong with the status of success.
  if (bytes < requests * instantAnswer.length)
    throw new Error(`${load.url} answered with less than what the upstream says`);
  if (requests === 0) throw new Error(`no request to ${load.url} was answered within ${duration_s} s`);
  return { requests, requests_per_s: (requests * 1e6) / duration_us };
}

export interface Latencies {
  p50_ms: number;
  p99_ms: number;
  p999_ms: number;
  requests: number;
}

/** Response times at a fixed rate, as h2load logs them for each request. */
export async function fixedRate(
  h2load: string,
  load: Load,
  { rate_per_s, duration_s, clients = 10 }: { rate_per_s: number; duration_s: number; clients?: number },
): Promise<Latencies> {
  const body = join(load.folder, 'body.json');
  const log = join(load.folder, 'h2load.log');
  writeFileSync(body, load.body);
  rmSync(log, { force: true });
  await run(load.taskset, [
    '-c',
    load.cores.join(','),
    h2load,
    '--h1',
    '-t1',
    `-c${clients}`,
    `--rps=${rate_per_s / clients}`,
    // Connections start one after another over their common period, so that requests come evenly and not in bursts.
    '--rate=1',
    `--rate-period=${Math.max(1, Math.floor(1000 / rate_per_s))}ms`,
    `-n${Math.floor(rate_per_s * duration_s)}`,
    '-d',
    body,
    '-H',
    'content-type: application/json',
    '-H',
    `authorization: Bearer ${load.key}`,
    `--log-file=${log}`,
    load.url,
  ]);
  const times_us: number[] = [];
  for (const line of readFileSync(log, 'utf8').split('\n')) {
    if (line === '') continue;
    const [, status, time_us] = line.split('\t').map(Number) as [number, number, number];
    if (status !== 200) throw new Error(`a request to ${load.url} was answered with ${status}`);
    times_us.push(time_us);
  }
  times_us.sort((a, b) => a - b);
  const at = (share: number): number => times_us[Math.floor(share * (times_us.length - 1))]! / 1000;
  return { p50_ms: at(0.5), p99_ms: at(0.99), p999_ms: at(0.999), requests: times_us.length };
}
