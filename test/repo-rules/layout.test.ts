import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { pageRoom, productRooms } from '../../.ci/dependency-rules.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** What may stand at the top of the tree; the architecture page says what each is for. */
const topLevel = [
  ...productRooms,
  ...[pageRoom, 'examples', 'bench', 'docs', 'test', '.ci', 'sbatch-templates', 'site-configs'],
  ...['package.json', 'package-lock.json', 'tsconfig.json', 'README.md', 'LICENSE', '.gitignore'],
];

const tracked = execFileSync('git', ['ls-files', '-z'], { cwd: root, encoding: 'utf8' })
  .split('\0')
  .filter(Boolean);

describe('the tree', () => {
  it('has no unlisted entry at the top', () => {
    const entries = new Set(tracked.map((path) => path.split('/')[0]!));
    expect([...entries].filter((entry) => !topLevel.includes(entry))).toEqual([]);
    expect(tracked.length).toBeGreaterThan(50);
  });

  it('has no room without a word in docs/architecture.md', () => {
    const page = readFileSync(`${root}/docs/architecture.md`, 'utf8');
    const rooms = new Set(tracked.filter((path) => path.includes('/')).map((path) => path.split('/')[0]!));
    expect([...rooms].filter((room) => !page.includes(`\`${room}/\``))).toEqual([]);
  });

  it('ships lock files that name no registry host', () => {
    const locks = tracked.filter((path) => path.endsWith('package-lock.json'));
    expect(locks).toContain('package-lock.json');
    expect(locks.filter((path) => readFileSync(`${root}/${path}`, 'utf8').includes('"resolved"'))).toEqual(
      [],
    );
  });

  it('holds no source file over 600 lines', () => {
    const long = tracked
      .filter((path) => /\.(ts|tsx|c|cc|cu)$/.test(path))
      .map((path) => ({ path, lines: readFileSync(`${root}/${path}`, 'utf8').split('\n').length }))
      .filter((file) => file.lines > 600);
    expect(long).toEqual([]);
  });

  it('has no leftover marks and no focused or skipped test', () => {
    const marks = /\b(TODO|FIXME|XXX|HACK)\b|\b(it|describe|test)\.(only|todo|skip)\(/;
    const marked = tracked
      .filter((path) => /\.(ts|tsx|c|cc|cu|sh|mjs)$/.test(path) && path !== 'test/repo-rules/layout.test.ts')
      .filter((path) => marks.test(readFileSync(`${root}/${path}`, 'utf8')));
    expect(marked).toEqual([]);
  });
});
