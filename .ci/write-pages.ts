/** `node dist/.ci/write-pages.js`: writes the pages of docs/ that come from the code. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../host/package-root.ts';
import { writtenPages } from './pages.ts';

for (const [path, text] of Object.entries(writtenPages)) {
  writeFileSync(join(packageRoot, path), await text());
  console.log(path);
}
