import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import { parseAllowedCores } from '../../host/processors.ts';

/** In a process of its own: affinity cannot be widened again by one that was confined. */
function restricted(cores: number[]): { refused?: string; allowed: number[][] } {
  const script = `
    import { readdirSync, readFileSync } from 'node:fs';
    import { restrictToCores } from ${JSON.stringify(join(packageRoot, 'dist/native/affinity.js'))};
    const refused = restrictToCores(${JSON.stringify(cores)});
    const allowed = readdirSync('/proc/self/task').map((id) => readFileSync('/proc/self/task/' + id + '/status', 'utf8'));
    console.log(JSON.stringify({ refused, allowed }));`;
  const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', script], {
    encoding: 'utf8',
  });
  if (stdout === '') throw new Error(stderr);
  const { refused, allowed } = JSON.parse(stdout) as { refused?: string; allowed: string[] };
  return { ...(refused === undefined ? {} : { refused }), allowed: allowed.map(parseAllowedCores) };
}

describe('restrictToCores', () => {
  const cores = parseAllowedCores(readFileSync('/proc/self/status', 'utf8'));

  test('every thread of the process stays on the cores', () => {
    const last = cores.at(-1)!;
    const { refused, allowed } = restricted([last]);
    expect(refused).toBe(undefined);
    expect(allowed.length).toBeGreaterThan(1);
    expect(allowed).toEqual(allowed.map(() => [last]));
  });

  test('no cores: everything stays as it was', () => {
    const { refused, allowed } = restricted([]);
    expect([refused, allowed[0]]).toEqual([undefined, cores]);
  });

  test('cores that this host does not have: it says so and changes nothing', () => {
    const { refused, allowed } = restricted([8000]);
    expect(refused).toContain('errno 22');
    expect(allowed[0]).toEqual(cores);
    expect(restricted([100_000]).refused).toContain('beyond what is supported');
  });
});
