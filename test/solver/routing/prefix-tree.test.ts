/** The tree of prefixes beside what it stands for: for each holder, the prompts that it was sent last. */
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { packageRoot } from '../../../host/package-root.ts';
import { PrefixTree } from '../../../solver/routing/prefix-tree.ts';
import { blocksOf } from './blocks.ts';

const holders = ['a', 'b', 'c'] as const;
/** Prompts of few kinds of blocks, so that many begin alike. */
const prompt = fc.array(fc.integer({ min: 1, max: 3 }), { minLength: 1, maxLength: 12 });

function heldBy(tree: PrefixTree, blocks: Uint32Array): Record<string, number> {
  return Object.fromEntries([...tree.match(blocks).held].map(([name, { blocks: count }]) => [name, count]));
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
    // In a process of its own: what other tests left in a heap goes when it likes.
    const program = join(packageRoot, 'dist/test/solver/routing/full-tree.js');
    const said = execFileSync(process.execPath, ['--expose-gc', program], { encoding: 'utf8' });
    const { bytes_max, most, counted, taken } = JSON.parse(said) as Record<string, number>;
    expect(most).toBeLessThanOrEqual(bytes_max!);
    expect(most).toBeGreaterThan(0.9 * bytes_max!);
    expect(taken).toBeLessThan(counted!);
    // It was the tree that was measured.
    expect(taken).toBeGreaterThan(counted! / 4);
  });
});
