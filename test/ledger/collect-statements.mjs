// Makes statements of SQLite that nobody holds, and lets Node collect them: `node collect-statements.mjs PACKAGE`, with
// the folder of better-sqlite3. An asynchronous collection has no script on the stack, as most in a server have none.
import { createRequire } from 'node:module';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc');
const Database = createRequire(import.meta.url)(process.argv[2]);
const database = new Database(':memory:');
let rounds = 0;

function round() {
  for (let number = 0; number < 20_000; number++) database.prepare(`SELECT ${number}`).get();
  collect({ type: 'major', execution: 'async' });
  if (++rounds < 5) setTimeout(round, 1);
  else console.log('went on');
}

round();
