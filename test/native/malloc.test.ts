import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';

const mib = 2 ** 20;

/** Growth of a process that had large blocks in hand, each with a small one after it that stays. */
const program = `
const { readFileSync } = await import('node:fs');
if (process.argv[1] === 'returned') {
  const { returnLargeBlocks } = await import(${JSON.stringify(join(packageRoot, 'dist/native/malloc.js'))});
  if (!returnLargeBlocks()) throw new Error('this C library has no mallopt');
} else await import('koffi');
const resident = () => Number(/^Rss:\\s+(\\d+) kB$/m.exec(readFileSync('/proc/self/smaps_rollup', 'utf8'))[1]) * 1024;
// Blocks are freed by a thread of V8 some time after a collection.
const freed = async () => { for (let at = 0; at < 5; at++) { gc(); await new Promise((done) => setTimeout(done, 50)); } };
let body = Buffer.alloc(30 * 2 ** 20, 1);
body = undefined;
await freed();
const before = resident();
const stays = [];
let bodies = [];
for (let at = 0; at < 40; at++) {
  bodies.push(Buffer.alloc(3 * 2 ** 20, 1));
  stays.push(Buffer.alloc(5000, 1));
}
bodies = undefined;
await freed();
console.log(JSON.stringify({ grown_bytes: resident() - before, stays: stays.length }));
`;

function grownBytes(how: 'returned' | 'as glibc does'): number {
  const argv = ['--expose-gc', '--input-type=module', '-e', program, how];
  const said = execFileSync(process.execPath, argv, { cwd: packageRoot, encoding: 'utf8' });
  return (JSON.parse(said) as { grown_bytes: number }).grown_bytes;
}

test('large blocks that were freed do not stay with the process', () => {
  const kept = grownBytes('as glibc does');
  const returned = grownBytes('returned');
  expect(returned).toBeLessThan(20 * mib);
  // The setting is what does it: without it most of the 120 MiB stay.
  expect(kept).toBeGreaterThan(60 * mib);
});
