import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { benches } from '../../bench/list.ts';
import { packageRoot } from '../../host/package-root.ts';

const page = readFileSync(fileURLToPath(new URL('../../bench/README.md', import.meta.url)), 'utf8');

describe('bench/README.md', () => {
  it('names every bench, and no other', () => {
    const named = [...page.matchAll(/^\| `([a-z-]+)` \|/gm)].map((match) => match[1]!);
    expect(named.sort()).toEqual(Object.keys(benches).sort());
    expect(named.length).toBeGreaterThan(0);
  });
});

describe('a bench that lacks its data', () => {
  it.each([
    ['simulator', 'HPCSERVE_TRUTH'],
    ['sharing', 'HPCSERVE_TRACES'],
    ['solver', 'HPCSERVE_INSTANCES'],
    ['prefix', 'HPCSERVE_TRACES'],
    ['engines', 'npm run engines -- vllm'],
    ['routers', 'npm run engines -- routers'],
    ['loss', 'npm run engines -- vllm'],
    ['hybridgemm', 'a GPU'],
  ])('fails before it measures: %s says what is missing and how to get it', (name, mend) => {
    const nowhere = {
      HPCSERVE_TRUTH: '/none',
      HPCSERVE_TRACES: '/none',
      HPCSERVE_INSTANCES: '/none',
      HPCSERVE_ENGINES: '/none',
      HPCSERVE_TEST_PYTHON: undefined,
    };
    const argv = [join(packageRoot, 'dist/bench/run.js'), name];
    const env = { ...process.env, ...nowhere };
    const { status, stdout, stderr } = spawnSync(process.execPath, argv, { env, encoding: 'utf8' });
    expect(status, stderr).toBe(1);
    expect(stdout).toBe('');
    expect(stderr).toMatch(
      new RegExp(
        `error: .* not (?:there|here)[\\s\\S]*try: .*${mend}|error: there are no .*/none[\\s\\S]*try: .*${mend}`,
      ),
    );
  });
});
