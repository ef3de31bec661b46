// Loads addons, and ends with an error, or at once, where one does not fit the Node that runs:
// `node load-addons.mjs ROOT FILE…`. Statements of SQLite are collected as in a server, where no script is on the stack:
// on Node 24 that ends the process where they were compiled without native/object-wrap.h.
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

const [root, ...files] = process.argv.slice(2);
for (const file of files) process.dlopen({ exports: {} }, file);
if (existsSync(join(root, 'node_modules/better-sqlite3'))) {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc');
  const Database = createRequire(join(root, 'package.json'))('better-sqlite3');
  const database = new Database(':memory:');
  for (let number = 0; number < 2000; number++) database.prepare(`SELECT ${number}`).get();
  await collect({ type: 'major', execution: 'async' });
  database.close();
}
