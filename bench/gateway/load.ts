import { execFile } from 'node:child_process';
import { writeFileSync } from 'node:fs';
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
