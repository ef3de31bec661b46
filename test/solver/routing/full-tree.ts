/**
 * `node --expose-gc full-tree.js`: what a tree of prefixes that has given up what was older counts for itself, and what
 * goes from the heap with it.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { PrefixTree } from '../../../solver/routing/prefix-tree.ts';
import { seededRandom } from '../../../solver/simulator/random.ts';
import { blocksOf } from './blocks.ts';

const bytes_max = 16 * 2 ** 20;
const turns = 20;

function full(): { tree: PrefixTree; most: number } {
  const random = seededRandom(3);
  const tree = new PrefixTree(bytes_max);
  let most = 0;
  for (let index = 0; index < 60_000; index++) {
    const length = 1 + Math.floor(random() * 60);
    const kinds = Array.from({ length }, (_, at) => Math.floor(random() * (at < 10 ? 2 : 50)));
    tree.insert(`replica ${Math.floor(random() * 4)}`, blocksOf(kinds), index);
    most = Math.max(most, tree.bytes);
  }
  tree.verify();
  return { tree, most };
}

/** Collected as a task of its own: nothing on a stack has anything then, not even what a call has just returned. */
async function heap_bytes(): Promise<number> {
  await global.gc!({ type: 'major', execution: 'async' });
  const { heapUsed, arrayBuffers } = process.memoryUsage();
  return heapUsed + arrayBuffers;
}

/** Nothing on the stack of the caller has the tree, so that it can go. */
function kept(): { trees: PrefixTree[]; most: number; counted: number } {
  const { tree, most } = full();
  return { trees: [tree], most, counted: tree.bytes };
}

const { trees, most, counted } = kept();
const with_bytes = await heap_bytes();
trees.length = 0;
// A turn of the loop or two may pass until nothing has it any more; nothing else here is as large.
let taken = 0;
for (let turn = 0; turn < turns && taken < counted / 4; turn++) {
  await delay(10);
  taken = with_bytes - (await heap_bytes());
}
console.log(JSON.stringify({ bytes_max, most, counted, taken }));
