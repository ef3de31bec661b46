/** Which of the two programs that the build writes is run, and that the one file holds all of it. */
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-programs-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function node(...argv: string[]): { status: number | null; out: string; err: string } {
  const { status, stdout, stderr } = spawnSync(process.execPath, argv, { encoding: 'utf8' });
  return { status, out: stdout.trim(), err: stderr.trim() };
}

describe('runProgram', () => {
  const bundle = 'dist/bundle/agent.js';
  const stamp = 'dist/.tsbuildinfo';

  /** What runs where these files were written at these seconds; without a second a file is missing. */
  function chosen(seconds: Readonly<Record<string, number>>): string {
    rmSync(join(folder, 'dist'), { recursive: true, force: true });
    for (const room of ['bundle', 'host', 'agent'])
      mkdirSync(join(folder, 'dist', room), { recursive: true });
    for (const file of ['package.json', 'dist/host/programs.js', 'dist/host/package-root.js'])
      cpSync(join(packageRoot, file), join(folder, file));
    cpSync(join(packageRoot, 'dist/agent/main.js'), join(folder, 'dist/agent/main.js'));
    writeFileSync(join(folder, 'dist/agent/run-agent.js'), `console.log('compiled');\n`);
    for (const [path, second] of Object.entries(seconds)) {
      writeFileSync(join(folder, path), path === bundle ? `console.log('bundle');\n` : '');
      utimesSync(join(folder, path), second, second);
    }
    const { out, err } = node(join(folder, 'dist/agent/main.js'));
    return out + err;
  }

  it('runs the one file where it is as new as what was compiled, and in an archive', () => {
    expect(chosen({ [bundle]: 12, [stamp]: 11 })).toBe('bundle');
    expect(chosen({ [bundle]: 12 })).toBe('bundle');
  });

  it('runs what was compiled where the one file is older or missing', () => {
    expect(chosen({ [bundle]: 11, [stamp]: 12 })).toBe('compiled');
    expect(chosen({ [stamp]: 12 })).toBe('compiled');
    expect(chosen({})).toBe('compiled');
  });
});

describe('each program', () => {
  it.each<[string, number]>([
    ['agent/main.js', 2],
    ['agent/device-worker/main.js', 2],
    ['gateway/main.js', 2],
    ['control/keeper/main.js', 1],
  ])('dist/%s is read from one file, addons apart', (program, status) => {
    const hook =
      'export const load = (url, context, next) => (process._rawDebug("LOAD", url), next(url, context));';
    const counter = join(folder, 'count.mjs');
    writeFileSync(
      counter,
      `import { register } from 'node:module';\nregister('data:text/javascript,${encodeURIComponent(hook)}');\n`,
    );
    const ended = node('--import', counter, join(packageRoot, 'dist', program));
    const loaded = ended.err
      .split('\n')
      .filter((line) => line.startsWith('LOAD file:') && !line.endsWith('/count.mjs'));
    expect(ended.status, ended.err).toBe(status);
    expect(loaded.filter((line) => line.includes('/dist/bundle/'))).toHaveLength(1);
    const others = loaded.filter((line) => !/\/dist\/bundle\/|\/(koffi|better-sqlite3)\//.test(line));
    // main.js, and what chooses: two files of host/.
    expect(others.length, others.join('\n')).toBeLessThanOrEqual(3);
  });
});
