import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';

const pages = [
  'README.md',
  'bench/README.md',
  ...readdirSync(join(packageRoot, 'docs')).map((name) => `docs/${name}`),
];
/** A path from the root of the tree, of a file or a folder. */
const named = /`((?:\w+|\.ci)\/(?:[\w.-]+\/)*(?:[\w.-]+\.(?:ts|mjs|c|py|json|eta|md))?)`/g;
/** Rooms and what stands beside them; other paths are of people's own folders. */
const top = new Set(
  readdirSync(packageRoot, { withFileTypes: true })
    .filter((entry) => entry.isDirectory() && !['node_modules', 'dist', 'build'].includes(entry.name))
    .map(({ name }) => name),
);

describe('pages', () => {
  it.each(pages)('%s names files that are there', (page) => {
    // What stood elsewhere once is the last part of its page.
    const [text] = readFileSync(join(packageRoot, page), 'utf8').split('\n## Old and new paths\n');
    const paths = [...text!.matchAll(named)].map(([, path]) => path!);
    const ours = paths.filter((path) => top.has(path.split('/')[0]!));
    expect(ours.filter((path) => !existsSync(join(packageRoot, path)))).toEqual([]);
  });

  it('of the architecture and for contributors name many', () => {
    for (const page of ['docs/architecture.md', 'docs/contributing.md'])
      expect(readFileSync(join(packageRoot, page), 'utf8').match(named)!.length).toBeGreaterThan(25);
  });
});
