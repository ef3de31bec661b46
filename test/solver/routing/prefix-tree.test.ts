/** The tree of prefixes beside what it stands for: for each holder, the prompts that it was sent last. */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { PrefixTree } from '../../../solver/routing/prefix-tree.ts';
import { seededRandom } from '../../../solver/simulator/random.ts';

const holders = ['a', 'b', 'c'] as const;
/** Prompts of few kinds of blocks, so that many begin alike. */
const prompt = fc.array(fc.integer({ min: 1, max: 3 }), { minLength: 1, maxLength: 12 });

/** Names of blocks stand for all before them. */
function blocksOf(kinds: readonly number[]): Uint32Array {
  let name = 7;
  return Uint32Array.from(kinds, (kind) => {
    name = (Math.imul(name, 31) + kind) >>> 0;
    return name;
  });
}

function heldBy(tree: PrefixTree, blocks: Uint32Array): Record<string, number> {
  return Object.fromEntries([...tree.match(blocks).held].map(([name, { blocks: count }]) => [name, count]));
}

/** A tree that has given up what was older; it never took more than its bytes. */
function full(bytes_max: number): PrefixTree {
  const random = seededRandom(3);
  const tree = new PrefixTree(bytes_max);
  let most = 0;
  for (let index = 0; index < 60_000; index++) {
    const length = 1 + Math.floor(random() * 60);
    const kinds = Array.from({ length }, (_, at) => Math.floor(random() * (at < 10 ? 2 : 50)));
    tree.insert(`replica ${Math.floor(random() * 4)}`, blocksOf(kinds), index);
    most = Math.max(most, tree.bytes);
  }
  expect(most).toBeLessThanOrEqual(bytes_max);
  expect(most).toBeGreaterThan(0.9 * bytes_max);
  tree.verify();
  return tree;
}

describe('a tree of prefixes', () => {
  it('knows of each holder the longest beginning that it was sent, without bounds', () => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.constantFrom(...holders), prompt), { maxLength: 40 }),
        prompt,
        (sent, asked) => {
          const tree = new PrefixTree(Number.POSITIVE_INFINITY);
          for (const [index, [holder, kinds]] of sent.entries()) tree.insert(holder, blocksOf(kinds), index);
          tree.verify();
          const expected: Record<string, number> = {};
          for (const [holder, kinds] of sent) {
            let common = 0;
            while (common < asked.length && kinds[common] === asked[common]) common++;
            if (common > 0) expected[holder] = Math.max(expected[holder] ?? 0, common);
          }
          expect(heldBy(tree, blocksOf(asked))).toEqual(expected);
        },
      ),
    );
  });

  it('keeps of each holder what it used last, up to its capacity: as an engine with that many blocks', () => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.constantFrom(...holders), prompt), { minLength: 1, maxLength: 40 }),
        fc.integer({ min: 1, max: 20 }),
        (sent, capacity) => {
          const tree = new PrefixTree(Number.POSITIVE_INFINITY);
          const engines = new Map(holders.map((name) => [name, new Map<number, true>()]));
          for (const name of holders) tree.setCapacity(name, capacity);
          for (const [index, [holder, kinds]] of sent.entries()) {
            const blocks = blocksOf(kinds);
            tree.insert(holder, blocks, index);
            tree.verify();
            // An engine gives up the end of a prompt before its beginning.
            const engine = engines.get(holder)!;
            for (const block of [...blocks].reverse()) {
              engine.delete(block);
              engine.set(block, true);
            }
            for (const block of engine.keys()) {
              if (engine.size <= capacity) break;
              engine.delete(block);
            }
            expect(tree.blocksOf(holder)).toBe(engine.size);
          }
          for (const [holder, kinds] of sent) {
            const blocks = blocksOf(kinds);
            let there = 0;
            while (there < blocks.length && engines.get(holder)!.has(blocks[there]!)) there++;
            expect(tree.match(blocks).held.get(holder)?.blocks ?? 0).toBe(there);
          }
        },
      ),
    );
  });

  it('forgets a holder whole, and keeps what others have', () => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.constantFrom(...holders), prompt), { minLength: 1, maxLength: 30 }),
        (sent) => {
          const tree = new PrefixTree(Number.POSITIVE_INFINITY);
          for (const [index, [holder, kinds]] of sent.entries()) tree.insert(holder, blocksOf(kinds), index);
          const before = sent.map(([, kinds]) => heldBy(tree, blocksOf(kinds)));
          tree.forget('a');
          tree.verify();
          expect(tree.blocksOf('a')).toBe(0);
          for (const [index, [, kinds]] of sent.entries()) {
            const { a: _gone, ...others } = before[index]!;
            expect(heldBy(tree, blocksOf(kinds))).toEqual(others);
          }
          for (const name of holders) tree.forget(name);
          expect(tree.bytes).toBe(0);
        },
      ),
    );
  });

  it('tells of a prompt what was noted of one that begins alike', () => {
    const tree = new PrefixTree(Number.POSITIVE_INFINITY);
    const noted = { hashes: Float64Array.of(1, 2), tokens: 40, units: 160 };
    tree.insert('a', blocksOf([1, 2, 3, 1]), 0);
    tree.annotate(blocksOf([1, 2, 3, 1]), noted);
    tree.insert('b', blocksOf([1, 2, 1]), 1);
    tree.verify();
    expect(tree.match(blocksOf([1, 2, 2])).note).toBe(noted);
    expect(tree.match(blocksOf([1, 2, 2])).blocks).toBe(2);
    expect(tree.match(blocksOf([2])).note).toBeUndefined();
    tree.forget('a');
    tree.forget('b');
    expect(tree.bytes).toBe(0);
  });

  it('never takes more than its bytes, and counts no fewer than the heap has', () => {
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as () => void;
    const bytes_max = 16 * 2 ** 20;
    const size = (): number => {
      collect();
      const { heapUsed, arrayBuffers } = process.memoryUsage();
      return heapUsed + arrayBuffers;
    };
    // Nothing on the stack of this function has the tree, so that it can go.
    const kept = [full(bytes_max)];
    const with_bytes = size();
    const counted = kept.map(({ bytes }) => bytes)[0]!;
    kept.pop();
    const taken = with_bytes - size();
    expect(taken).toBeLessThan(counted);
    // It was the tree that was measured.
    expect(taken).toBeGreaterThan(counted / 4);
  });
});
