/** What an agent makes of the events of an engine's KV cache, honest ones and others. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { BlockFeed, type BlockReader } from '../../../agent/kv-events/block-feed.ts';
import type { EngineEvent } from '../../../agent/kv-events/engine-events.ts';
import { PromptKnowledge } from '../../../gateway/routing/prompt-knowledge.ts';
import { ModelPrefixes } from '../../../solver/routing/model-prefixes.ts';
import { ResidentBlocks } from '../../../solver/routing/resident-blocks.ts';
import { tokenHashes } from '../../../solver/routing/token-blocks.ts';
import {
  type KvBlockNews,
  kvBlockNewsSchema,
  kvChange_bytes,
  kvChanges_max,
} from '../../../spec/kv-blocks.ts';

const block_tokens = 4;

/** An engine that tells its own hashes: texts of the tokens up to a block's end. */
function stored(tokens: readonly number[], from = 0): EngineEvent {
  const ends = Array.from(
    { length: (tokens.length - from) / block_tokens },
    (_, index) => from + (index + 1) * block_tokens,
  );
  const hashAt = (end: number): string => tokens.slice(0, end).join();
  return {
    kind: 'stored',
    hashes: ends.map(hashAt),
    parent: from === 0 ? undefined : hashAt(from),
    tokens: tokens.slice(from),
    block_tokens,
    plain: true,
  };
}

function removed(tokens: readonly number[]): EngineEvent {
  return { kind: 'removed', hashes: [tokens.join()] };
}

/** What a gateway knows that reads it. */
function gateway(reader: BlockReader): { resident: ResidentBlocks; read(): number } {
  const resident = new ResidentBlocks(2 ** 20);
  return {
    resident,
    read() {
      let pieces = 0;
      for (let news = reader.next(); news; news = reader.next()) {
        expect(kvBlockNewsSchema.safeParse(news).error).toBeUndefined();
        pieces++;
        take(resident, news);
      }
      return pieces;
    },
  };
}

function take(resident: ResidentBlocks, { reset, over, changes, block_tokens: size }: KvBlockNews): void {
  if (over) {
    resident.end();
    return;
  }
  if (reset) resident.reset(size);
  const bytes = Buffer.from(changes, 'base64');
  expect(bytes.length / kvChange_bytes).toBeLessThanOrEqual(kvChanges_max);
  for (let at = 0; at < bytes.length; at += kvChange_bytes)
    resident.change(bytes.readUIntBE(at, kvChange_bytes));
}

const ids = (count: number, first = 0): number[] =>
  Array.from({ length: count }, (_, index) => first + index);

describe('what an agent tells of blocks', () => {
  it('is under the names that a gateway gives to the same tokens, and is taken back when they go', () => {
    const feed = new BlockFeed();
    const { resident, read } = gateway(feed.reader());
    feed.take({ sequence: 0, events: [stored(ids(8)), stored(ids(16), 8)] });
    read();
    const hashes = tokenHashes(ids(18), block_tokens);
    expect(resident.tokensOf(hashes, 18)).toBe(16);
    expect(resident.tokensOf(tokenHashes([...ids(8), 99, 99, 99, 99], block_tokens), 12)).toBe(8);
    feed.take({ sequence: 1, events: [removed(ids(16))] });
    read();
    expect(resident.tokensOf(hashes, 18)).toBe(12);
    feed.take({ sequence: 2, events: [{ kind: 'cleared' }, stored(ids(4, 50))] });
    read();
    expect(resident.tokensOf(hashes, 18)).toBe(0);
    expect(resident.size).toBe(1);
  });

  it('is the same for everybody, whenever they begin to read and however late they go on', () => {
    const step = fc.oneof(
      fc.record({
        at: fc.constant('store' as const),
        first: fc.nat(20),
        blocks: fc.integer({ min: 1, max: 5 }),
      }),
      fc.record({
        at: fc.constant('remove' as const),
        first: fc.nat(20),
        blocks: fc.integer({ min: 1, max: 5 }),
      }),
      fc.record({ at: fc.constant('clear' as const) }),
      fc.record({ at: fc.constant('read' as const), who: fc.nat(2) }),
    );
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const feed = new BlockFeed();
        const there = new Set<string>();
        const readers = [0, 1, 2].map(() => gateway(feed.reader()));
        let sequence = 0;
        for (const each of steps) {
          if (each.at === 'read') readers[each.who]!.read();
          else if (each.at === 'clear') {
            feed.take({ sequence: sequence++, events: [{ kind: 'cleared' }] });
            there.clear();
          } else {
            const tokens = ids(each.blocks * block_tokens, 100 * each.first);
            feed.take({
              sequence: sequence++,
              events: [each.at === 'store' ? stored(tokens) : removed(tokens)],
            });
            if (each.at === 'remove') there.delete(tokens.join());
            else
              for (let end = block_tokens; end <= tokens.length; end += block_tokens)
                there.add(tokens.slice(0, end).join());
          }
        }
        for (const { resident, read } of [...readers, gateway(feed.reader())]) {
          read();
          expect(resident.size).toBe(there.size);
        }
      }),
    );
  });

  it('comes in bounded pieces', () => {
    const feed = new BlockFeed();
    const blocks = 20_000;
    feed.take({
      sequence: 0,
      events: Array.from({ length: blocks }, (_, index) => stored(ids(4, 10 * index))),
    });
    const { resident, read } = gateway(feed.reader());
    expect(read()).toBe(Math.ceil(blocks / kvChanges_max));
    expect(resident.size).toBe(blocks);
  });

  it.each<[string, EngineEvent[], number]>([
    ['a gap', [stored(ids(4))], 5],
    ['one that comes again', [stored(ids(4))], 0],
    ['blocks of another size', [{ ...stored(ids(8)), block_tokens: 8, hashes: ['x'] } as EngineEvent], 1],
    ['tokens that are none', [{ ...stored(ids(4, 8)), tokens: [1, -1, 'a', 2] } as EngineEvent], 1],
  ])('ends with %s, and says so', (_words, events, sequence) => {
    const feed = new BlockFeed();
    const { resident, read } = gateway(feed.reader());
    feed.take({ sequence: 0, events: [stored(ids(8))] });
    read();
    expect(resident.told).toBe(true);
    feed.take({ sequence, events });
    read();
    expect(resident).toMatchObject({ told: false, size: 0 });
    expect(feed.size).toBe(0);
    expect(feed.whyOver).toMatch(/\w/);
    feed.take({ sequence: sequence + 1, events: [stored(ids(8))] });
    expect(feed.size).toBe(0);
  });

  it('is without blocks that are not of tokens alone, and what follows them', () => {
    const feed = new BlockFeed();
    feed.take({
      sequence: 0,
      events: [{ ...stored(ids(8)), plain: false } as EngineEvent, stored(ids(16), 8), stored(ids(4, 70))],
    });
    expect(feed.size).toBe(1);
    feed.take({ sequence: 1, events: [{ ...stored(ids(8)), tokens: [1, 2] } as EngineEvent] });
    expect(feed).toMatchObject({ size: 1, whyOver: undefined });
  });

  it('ends where a cache has more blocks than there is room for', () => {
    const feed = new BlockFeed();
    for (let sequence = 0; sequence < 66; sequence++)
      feed.take({
        sequence,
        events: Array.from({ length: 4000 }, (_, index) => stored(ids(4, 10 * (4000 * sequence + index)))),
      });
    expect(feed.size).toBe(0);
    expect(feed.whyOver).toContain('more than 262144 blocks');
  });
});

describe('a gateway', () => {
  it.each<[string, unknown]>([
    ['no object', 7],
    ['no changes', { block_tokens: 16 }],
    ['changes that are no base64', { block_tokens: 16, changes: '<>' }],
    ['impossible blocks', { block_tokens: -1, changes: '' }],
    ['other blocks than before', { block_tokens: 32, changes: '' }],
    ['an end', { block_tokens: 16, changes: '', over: true }],
  ])('voids what a session said before %s', (_words, news) => {
    const prompts = new PromptKnowledge(() => 1);
    const model = new ModelPrefixes({ bytes_max: 2 ** 20, units_per_block: 64 });
    const prompt = { blocks: Uint32Array.of(1), units: 64 };
    const sent = model.sent('s', prompt, model.view(prompt, 0), { now_ms: 0, streams: true, kv_tokens: 0 });
    const believed = (): boolean => prompts.wantsTokens({ model, sent, prompt }) !== undefined;
    const changes = Buffer.alloc(kvChange_bytes, 1).toString('base64');
    prompts.blocks('s', { block_tokens: 16, changes });
    expect(believed()).toBe(false);
    prompts.blocks('s', { reset: true, block_tokens: 16, changes });
    expect(believed()).toBe(true);
    prompts.blocks('s', news);
    expect(believed()).toBe(false);
    prompts.blocks('s', { block_tokens: 16, changes });
    expect(believed()).toBe(false);
    prompts.blocks('s', { reset: true, block_tokens: 16, changes });
    expect(believed()).toBe(true);
    prompts.forget('s');
    expect(believed()).toBe(false);
  });
});
