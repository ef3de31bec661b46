/** The block allocator under random histories: nothing is lost, nothing is given twice. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { type BlockList, KvBlockAllocator } from '../../../agent/engine/kv-block-allocator.ts';
import type { KvStorage, KvUser } from '../../../agent/engine/kv-storage.ts';

/** Numbers only: slabs of so many blocks, of which so many may have memory. */
class FakeStorage implements KvStorage {
  readonly buffer = 0n as never;
  readonly slab_rows: number;
  readonly slabs: number;
  readonly slab_bytes: number;
  readonly scratch_row = -1;
  readonly n_rows = 0;
  readonly block_rows = new Int32Array(0);
  readonly memory_slabs: number;
  readonly held = new Set<number>();
  user: KvUser | undefined;

  constructor(blocks: number, slab_blocks = blocks, memory_slabs = blocks / slab_blocks) {
    this.slab_rows = 16 * slab_blocks;
    this.slab_bytes = slab_blocks * 1000;
    this.slabs = blocks / slab_blocks;
    this.memory_slabs = memory_slabs;
  }

  get bytes(): number {
    return this.held.size * this.slab_bytes;
  }

  address(): never {
    throw new Error('there is no memory');
  }

  commit(slabs: readonly number[]): boolean {
    if (this.held.size + slabs.length > this.memory_slabs) return false;
    for (const slab of slabs) {
      expect(this.held.has(slab)).toBe(false);
      this.held.add(slab);
    }
    return true;
  }

  release(slabs: readonly number[]): void {
    for (const slab of slabs) expect(this.held.delete(slab)).toBe(true);
  }

  couldCommit(slabs: number): boolean {
    return slabs <= this.memory_slabs;
  }

  attach(user: KvUser): void {
    this.user = user;
  }

  free(): void {
    this.held.clear();
  }
}

/** Where rows are copied to does not matter. */
const nothing = (): void => {};

const tokensOf = (seed: number, length: number): Int32Array =>
  Int32Array.from({ length }, (_, index) => (index < 32 ? 7 : seed * 1000 + index));

test('references and lists agree after any history', () => {
  const action = fc.record({
    kind: fc.constantFrom('open', 'grow', 'release'),
    which: fc.nat(20),
    length: fc.integer({ min: 1, max: 200 }),
  });
  fc.assert(
    fc.property(fc.array(action, { maxLength: 60 }), (actions) => {
      const blocks = new KvBlockAllocator(new FakeStorage(24), 24, nothing);
      const live: { list: BlockList; seed: number }[] = [];
      for (const { kind, which, length } of actions) {
        const chosen = live[which % Math.max(1, live.length)];
        if (kind === 'open') {
          const list = blocks.open(Math.ceil(length / 16) + 4);
          const shared = blocks.share(list, tokensOf(which, length));
          expect(shared).toBeLessThan(length);
          if (blocks.grow(list, Math.ceil(length / 16))) {
            blocks.remember(list, tokensOf(which, length), length);
            live.push({ list, seed: which });
          } else blocks.release(list);
        } else if (kind === 'grow' && chosen) blocks.grow(chosen.list, chosen.list.blocks.length + 1);
        else if (kind === 'release' && chosen) {
          blocks.release(chosen.list);
          live.splice(live.indexOf(chosen), 1);
        }
        blocks.verify();
      }
      for (const { list } of live) blocks.release(list);
      blocks.verify();
      expect(blocks.used_blocks).toBe(0);
    }),
    { numRuns: 200 },
  );
});

test('a sequence stays in one extent while there is room', () => {
  const blocks = new KvBlockAllocator(new FakeStorage(64), 64, nothing);
  const lists = [blocks.open(16), blocks.open(16), blocks.open(16)];
  for (let count = 1; count <= 16; count++) for (const list of lists) blocks.grow(list, count);
  for (const { blocks: own } of lists)
    expect(own.every((block, index) => index === 0 || block === own[index - 1]! + 1)).toBe(true);
});

test('only the same tokens behind the same prefix are shared', () => {
  const blocks = new KvBlockAllocator(new FakeStorage(16), 16, nothing);
  const first = blocks.open(4);
  const tokens = Int32Array.from({ length: 48 }, (_, index) => index);
  blocks.grow(first, 3);
  blocks.remember(first, tokens, 48);
  blocks.release(first);
  const same = blocks.open(4);
  expect(blocks.share(same, tokens)).toBe(32);
  const shifted = blocks.open(4);
  expect(blocks.share(shifted, tokens.slice(16))).toBe(0);
  const changed = blocks.open(4);
  expect(
    blocks.share(
      changed,
      tokens.map((token) => (token === 20 ? 99 : token)),
    ),
  ).toBe(16);
});

test('blocks are found in their own scope alone, whole ones and beginnings', () => {
  const copied: number[] = [];
  const blocks = new KvBlockAllocator(new FakeStorage(32), 32, (_from, _to, rows) => copied.push(rows));
  const tokens = Int32Array.from({ length: 40 }, (_, index) => index);
  const scopes = ['', '0', 'a', '"a"', '1:2'];
  const known = (scope: string): number => {
    const list = blocks.open(4, scope);
    const shared = blocks.share(list, tokens);
    blocks.grow(list, 3);
    const found = shared + blocks.copyBeginning(list);
    blocks.remember(list, tokens, 40);
    blocks.release(list);
    blocks.verify();
    return found;
  };
  for (const scope of scopes) expect([scope, known(scope)]).toEqual([scope, 0]);
  for (const scope of scopes) expect(known(scope)).toBeGreaterThanOrEqual(32);
  expect(known('of nobody')).toBe(0);
});

test('of a block that is the same in part, the rows that are are copied, and nobody who has them is disturbed', () => {
  const action = fc.record({
    kind: fc.constantFrom('open', 'open', 'decode', 'release'),
    which: fc.nat(20),
    /** Prompts begin alike, and differ from a token on. */
    differs_at: fc.nat(70),
    length: fc.integer({ min: 1, max: 80 }),
  });
  fc.assert(
    fc.property(fc.array(action, { maxLength: 60 }), (actions) => {
      // What every row of the cache holds: the tokens of its sequence up to there.
      const rows: string[] = new Array(16 * 40).fill('');
      const storage = new FakeStorage(40, 4, 6);
      const blocks = new KvBlockAllocator(storage, 40, (from, to, count) => {
        expect(from).not.toBe(to);
        for (let row = 0; row < count; row++) rows[16 * to + row] = rows[16 * from + row]!;
      });
      const live: { list: BlockList; tokens: number[] }[] = [];
      const rowOf = (list: BlockList, position: number): number =>
        16 * list.blocks[Math.floor(position / 16)]! + (position % 16);
      const until = (tokens: readonly number[], position: number): string =>
        tokens.slice(0, position + 1).join();
      const compute = (list: BlockList, tokens: readonly number[], from: number): void => {
        for (let position = from; position < tokens.length; position++)
          rows[rowOf(list, position)] = until(tokens, position);
        blocks.remember(list, tokens, tokens.length);
      };
      for (const { kind, which, differs_at, length } of actions) {
        const chosen = live[which % Math.max(1, live.length)];
        if (kind === 'open') {
          const tokens = Array.from({ length }, (_, index) => (index < differs_at ? 7 : 100 + (which % 3)));
          const list = blocks.open(Math.ceil(length / 16) + 1);
          const shared = blocks.share(list, tokens);
          if (blocks.grow(list, Math.ceil(length / 16))) {
            const known = shared + blocks.copyBeginning(list);
            expect(known).toBeLessThan(length);
            compute(list, tokens, known);
            live.push({ list, tokens });
          } else blocks.release(list);
        } else if (kind === 'decode' && chosen) {
          const { list, tokens } = chosen;
          if (!blocks.grow(list, Math.ceil((tokens.length + 1) / 16))) continue;
          tokens.push(50 + (which % 2));
          compute(list, tokens, tokens.length - 1);
        } else if (kind === 'release' && chosen) {
          blocks.release(chosen.list);
          live.splice(live.indexOf(chosen), 1);
        }
        blocks.verify();
        for (const { list, tokens } of live)
          tokens.forEach((_, position) => {
            expect(rows[rowOf(list, position)]).toBe(until(tokens, position));
          });
      }
    }),
    { numRuns: 60 },
  );
});

test('a prompt that is the same but for its end computes the end alone', () => {
  const copies: number[][] = [];
  const blocks = new KvBlockAllocator(new FakeStorage(16), 16, (...copy) => copies.push(copy));
  const tokens = Int32Array.from({ length: 40 }, (_, index) => index);
  const first = blocks.open(4);
  blocks.grow(first, 3);
  blocks.remember(first, tokens, 40);
  const ask = (end: number): number => {
    const list = blocks.open(4);
    const asked = Int32Array.from([...tokens.slice(0, 38), end, end]);
    const shared = blocks.share(list, asked);
    expect(blocks.grow(list, 3)).toBe(true);
    const known = shared + blocks.copyBeginning(list);
    blocks.remember(list, asked, 40);
    blocks.release(list);
    blocks.verify();
    return known;
  };
  // The first one lives: its third block is copied from.
  expect(ask(90)).toBe(38);
  expect(copies).toEqual([[first.blocks[2]!, expect.any(Number), 6]]);
  expect(ask(90)).toBe(39);
  blocks.release(first);
  // It lies behind its shared blocks, and nobody has it: it is taken as it is.
  const copied = copies.length;
  const again = blocks.open(4);
  expect(blocks.share(again, [...tokens, 91])).toBe(40);
  expect(copies).toHaveLength(copied);
  blocks.release(again);
  blocks.verify();
});

test('any history over slabs that have memory for a part of the blocks only', () => {
  const action = fc.record({
    kind: fc.constantFrom('open', 'grow', 'release', 'budget', 'pressure'),
    which: fc.nat(20),
    length: fc.integer({ min: 1, max: 300 }),
  });
  fc.assert(
    fc.property(fc.array(action, { maxLength: 80 }), (actions) => {
      const storage = new FakeStorage(64, 4, 6);
      const blocks = new KvBlockAllocator(storage, 20, nothing);
      const live: { list: BlockList }[] = [];
      for (const { kind, which, length } of actions) {
        const chosen = live[which % Math.max(1, live.length)];
        if (kind === 'open') {
          const list = blocks.open(Math.ceil(length / 16) + 2);
          blocks.share(list, tokensOf(which, length));
          if (blocks.grow(list, Math.ceil(length / 16), which === 0)) {
            blocks.remember(list, tokensOf(which, length), length);
            live.push({ list });
          } else blocks.release(list);
        } else if (kind === 'grow' && chosen) blocks.grow(chosen.list, chosen.list.blocks.length + 1);
        else if (kind === 'release' && chosen) {
          blocks.release(chosen.list);
          live.splice(live.indexOf(chosen), 1);
        } else if (kind === 'budget') {
          const bytes = blocks.setBudget(which * 1000);
          expect(bytes).toBeGreaterThanOrEqual(blocks.used_bytes);
        } else if (kind === 'pressure') storage.user!.reclaim(which * 1000);
        blocks.verify();
        expect(storage.bytes).toBe(blocks.used_bytes + blocks.cached_bytes);
        for (const { list } of live)
          for (const block of list.blocks) expect(storage.held.has(Math.floor(block / 4))).toBe(true);
      }
      for (const { list } of live) blocks.release(list);
      storage.user!.reclaim(1e9);
      expect(storage.bytes).toBe(0);
      blocks.verify();
    }),
    { numRuns: 200 },
  );
});

test('a sequence goes on in scattered blocks where no slab more can be had', () => {
  const storage = new FakeStorage(64, 4, 2);
  const blocks = new KvBlockAllocator(storage, 64, nothing);
  const [one, two] = [blocks.open(4), blocks.open(8)];
  expect(blocks.grow(one, 1)).toBe(true);
  expect(blocks.grow(two, 4)).toBe(true);
  expect(blocks.grow(two, 5)).toBe(true);
  expect(two.blocks[4]).not.toBe(two.blocks[3]! + 1);
  expect(blocks.grow(two, 8)).toBe(false);
  expect(two.blocks).toHaveLength(5);
  blocks.verify();
});
