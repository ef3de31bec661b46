/** The bench once more, where there is no network but a loopback interface: some peers would ask the internet. */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { text } from 'node:stream/consumers';
import { MissingNeed } from '../need.ts';
import type { BenchReport, BenchResult } from '../result.ts';

/** Set in the process that is there. */
const marker = 'HPCSERVE_BENCH_ISOLATED';

export const isIsolated = (): boolean => process.env[marker] !== undefined;

/** Brings up the loopback interface, which a new network namespace has down. */
export function openLoopback(): void {
  execFileSync('ip', ['link', 'set', 'lo', 'up']);
}

/**
 * Runs a bench with its arguments in a network namespace of its own; what it logs is seen here.
 * @throws MissingNeed where the system makes none
 */
export async function runIsolated(bench: string, args: readonly string[]): Promise<BenchResult[]> {
  const isRoot = process.getuid?.() === 0;
  const namespace = isRoot ? ['--net'] : ['--user', '--map-root-user', '--net'];
  requireNamespaces(namespace);
  const again = [process.execPath, ...process.execArgv, process.argv[1]!, bench, '--json', ...args];
  const child = spawn('unshare', [...namespace, ...again], {
    env: { ...process.env, [marker]: '1' },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [said, [code]] = await Promise.all([text(child.stdout), once(child, 'close')]);
  // 1 is also the exit code where a bar does not hold.
  if (said === '') throw new Error(`the bench ended with ${code} in its network namespace`);
  return (JSON.parse(said) as BenchReport).results;
}

function requireNamespaces(namespace: readonly string[]): void {
  try {
    execFileSync('unshare', [...namespace, 'ip', 'link', 'set', 'lo', 'up'], { stdio: 'pipe' });
  } catch (error) {
    throw new MissingNeed(
      `no network namespace can be made, in which alone OpenTela runs: ${(error as Error).message}`,
      'run it as root, such as in a container that may make network namespaces; or without --opentela',
    );
  }
}
