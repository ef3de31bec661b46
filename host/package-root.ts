import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/**
 * The folder that holds package.json, sbatch-templates/, site-configs/ and examples/, whether this file
 * runs from the sources, from dist/ or from an unpacked archive.
 */
export const packageRoot: string = findPackageRoot();

function findPackageRoot(): string {
  let folder = dirname(fileURLToPath(import.meta.url));
  for (;;) {
    const candidate = join(folder, 'package.json');
    if (existsSync(candidate) && JSON.parse(readFileSync(candidate, 'utf8')).name === 'hpcserve')
      return folder;
    const parent = dirname(folder);
    if (parent === folder)
      throw new Error(`no package.json of hpcserve above ${fileURLToPath(import.meta.url)}`);
    folder = parent;
  }
}
