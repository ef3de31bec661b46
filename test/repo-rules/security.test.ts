import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';

const page = readFileSync(join(packageRoot, 'docs/security.md'), 'utf8');
/** A file, and the words of titles that follow it. */
const named = [...page.matchAll(/`(test\/[\w./-]+\.test\.ts)`((?:,? “[^”]+”)*)/g)].map(([, file, words]) => ({
  file: file!,
  titles: [...words!.matchAll(/“([^”]+)”/g)].map(([, title]) => title!),
}));

describe('docs/security.md', () => {
  it('names a test in every row', () => {
    const rows = page.split('\n').filter((line) => line.startsWith('| ') && !line.startsWith('| could'));
    expect(rows.length).toBeGreaterThan(25);
    expect(rows.filter((row) => !/`test\/[\w./-]+\.test\.ts`/.test(row))).toEqual([]);
  });

  it.each(named)('$file has the tests that are named', ({ file, titles }) => {
    const path = join(packageRoot, file);
    expect(existsSync(path)).toBe(true);
    const text = readFileSync(path, 'utf8').replaceAll('’', "'");
    expect(titles.filter((title) => !text.includes(title.replaceAll('’', "'")))).toEqual([]);
  });
});
