import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';

const root = fileURLToPath(new URL('../..', import.meta.url));

describe('npm run quickstart', () => {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-quickstart-'));
  const environment = {
    ...process.env,
    HPCSERVE_STATE_DIR: join(folder, 'state'),
    XDG_CONFIG_HOME: join(folder, 'config'),
  };

  afterAll(() => {
    spawnSync(
      process.execPath,
      [join(root, 'cli/hpcserve.mjs'), 'stop', '--all', '--site', 'local', '--yes'],
      { env: environment },
    );
    rmSync(folder, { recursive: true, force: true });
  });

  it('deploys, answers, and prints commands that work as typed', () => {
    const run = spawnSync('npm', ['run', '--silent', 'quickstart'], {
      cwd: root,
      env: environment,
      encoding: 'utf8',
      timeout: 120_000,
    });
    expect(run.status, run.stderr).toBe(0);
    expect(run.stdout).toMatch(/^URL {2}http:\/\/127\.0\.0\.1:\d+\/v1$/m);
    expect(run.stdout).toMatch(/^key {2}hsk-\w+$/m);
    expect(run.stderr).toMatch(/▸ [1-9]\d* chunks arrived/);

    // The printed lines are given to a shell as a person would paste them.
    const line = (start: string): string => {
      const found = run.stdout.split('\n').find((text) => text.trim().startsWith(start));
      expect(found, start).toBeDefined();
      return found!.trim();
    };
    const type = (text: string): string =>
      execFileSync('/bin/sh', ['-c', text], {
        cwd: root,
        env: environment,
        encoding: 'utf8',
        timeout: 60_000,
      });
    const answer = type(line('curl').replace('curl', 'curl -sS'));
    expect(answer).toMatch(/^data: \{/);
    expect(answer.trimEnd().split('\n').at(-1)).toBe('data: [DONE]');
    expect(type(line('npm run --silent hpcserve -- status'))).toContain('serving');
    expect(type(line('npm run --silent hpcserve -- logs')).length).toBeGreaterThan(0);
    type(line('npm run --silent hpcserve -- stop'));
    const left = execFileSync('ps', ['-eo', 'pid,args'], { encoding: 'utf8' })
      .split('\n')
      .filter((text) => text.includes(folder));
    expect(left).toEqual([]);
  }, 180_000);
});
