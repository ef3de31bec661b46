/** Response times at a rate that does not wait for answers. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { text } from 'node:stream/consumers';
import { compileProgram } from '../compile.ts';
import type { Load } from './load.ts';

export interface Latencies {
  p50_ms: number;
  p99_ms: number;
  p999_ms: number;
  requests: number;
}

export interface Arrivals {
  rate_per_s: number;
  duration_s: number;
}

/** @returns the path of the program @throws MissingNeed */
export function compileOpenLoop(folder: string): string {
  return compileProgram('bench/gateway/open-loop.c', folder, ['m']);
}

/** More than are under way at once, so that hardly a request waits for a connection. */
const connections = 64;

/**
 * Requests that come at random, as those of many clients do. h2load's `--rps` gives each client its requests of ten
 * milliseconds at once (its timer has no finer unit), and how many clients begin together is chance: what is measured
 * is then how long such a burst takes.
 *
 * @param program compiled from open-loop.c
 * @throws Error where a request is not answered with success
 */
export async function atRate(
  program: string,
  load: Load,
  { rate_per_s, duration_s }: Arrivals,
): Promise<Latencies> {
  const { port, host, pathname } = new URL(load.url);
  const request =
    `POST ${pathname} HTTP/1.1\r\nhost: ${host}\r\ncontent-type: application/json\r\n` +
    `authorization: Bearer ${load.key}\r\ncontent-length: ${Buffer.byteLength(load.body)}\r\n\r\n${load.body}`;
  const count = Math.floor(rate_per_s * duration_s);
  const command = ['-c', load.cores.join(','), program, port, connections, rate_per_s, count].map(String);
  const child = spawn(load.taskset, command, { stdio: ['pipe', 'pipe', 'pipe'] });
  child.stdin.on('error', () => undefined); // it ended: its exit status says so
  child.stdin.end(request);
  const [said, wrong, [status]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'close') as Promise<[number | null]>,
  ]);
  if (status !== 0) throw new Error(`requests to ${load.url} failed: ${wrong.trim()}`);
  return latenciesOf(said, load.url);
}

/** @param said a line for each request: its status, and µs */
function latenciesOf(said: string, url: string): Latencies {
  const times_us = said
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => {
      const [status, time_us] = line.split('\t').map(Number) as [number, number];
      if (status !== 200) throw new Error(`a request to ${url} was answered with ${status}`);
      return time_us;
    })
    .sort((a, b) => a - b);
  const at = (share: number): number => times_us[Math.floor(share * (times_us.length - 1))]! / 1000;
  return { p50_ms: at(0.5), p99_ms: at(0.99), p999_ms: at(0.999), requests: times_us.length };
}
