/** What is known of prompts, and who is chosen by it. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { byEngine } from '../../../solver/routing/by-engine.ts';
import type { Candidate } from '../../../solver/routing/candidate.ts';
import { byMissCost, missCost_s } from '../../../solver/routing/miss-cost.ts';
import { ModelPrefixes, type PromptBlocks, type PromptView } from '../../../solver/routing/model-prefixes.ts';
import { ResidentBlocks } from '../../../solver/routing/resident-blocks.ts';
import { tokenHash_end, tokenHashes } from '../../../solver/routing/token-blocks.ts';

const units_per_block = 64;
const asked = { expected_ms: 4000 };

function candidate(session_id: string, change: Partial<Candidate> = {}): Candidate {
  return {
    session_id,
    running: 0,
    waiting: 0,
    max_sequences: 8,
    unreported: 0,
    unanswered: 0,
    kv_tokens_total: 0,
    kv_tokens_used: 0,
    native: false,
    cpu: false,
    ...change,
  };
}

function promptOf(first: number, count: number): PromptBlocks {
  const blocks = Uint32Array.from({ length: count }, (_, index) => first + index);
  return { blocks, units: count * units_per_block };
}

function knowledge(): ModelPrefixes {
  return new ModelPrefixes({ bytes_max: 2 ** 20, units_per_block });
}

const sending = { streams: true, kv_tokens: 0 };

describe('what is known of prompts', () => {
  it('learns how many tokens a text has: a byte-level tokenizer has one a character', () => {
    const prefixes = knowledge();
    const prompt = promptOf(1, 10);
    expect(prefixes.view(prompt, 0).tokens).toBe(160);
    for (let turn = 0; turn < 20; turn++) {
      const sent = prefixes.sent('a', prompt, prefixes.view(prompt, turn), { ...sending, now_ms: turn });
      prefixes.ended(sent, prompt.units);
    }
    expect(prefixes.view(prompt, 100).tokens).toBeCloseTo(640);
  });

  it('learns how fast a replica computes prompts, those in front of a prompt included', () => {
    const prefixes = knowledge();
    for (let turn = 0; turn < 30; turn++) {
      const now_ms = 1000 * turn;
      const [one, two] = [promptOf(1000 * turn + 1, 100), promptOf(1000 * turn + 501, 100)].map((prompt) =>
        prefixes.sent('a', prompt, prefixes.view(prompt, now_ms), { ...sending, now_ms }),
      );
      // 1,600 tokens each, at 4,000 tokens a second.
      prefixes.began(one!, now_ms + 400);
      prefixes.began(two!, now_ms + 800);
      for (const sent of [one!, two!]) prefixes.ended(sent, 1600);
    }
    const { prefills, prefill_tokens_per_s } = prefixes.view(promptOf(7, 1), 1e6);
    expect(prefills.get('a')!.tokens_per_s).toBeCloseTo(4000, -1);
    expect(prefill_tokens_per_s).toBeCloseTo(4000, -1);
    expect(prefills.get('a')!.pending_tokens).toBe(0);
  });

  it('takes the prompt of an answer that comes whole for computed when it should be', () => {
    const prefixes = knowledge();
    const prompt = promptOf(1, 100);
    prefixes.sent('a', prompt, prefixes.view(prompt, 0), { now_ms: 0, streams: false, kv_tokens: 0 });
    const pending = (now_ms: number): number =>
      prefixes.view(prompt, now_ms).prefills.get('a')!.pending_tokens;
    expect(pending(0)).toBe(1600);
    expect(pending(319)).toBe(1600);
    expect(pending(320)).toBe(0);
  });

  it('has no prompt left to compute whose answer came whole, and sooner than it should', () => {
    const prefixes = knowledge();
    const prompt = promptOf(1, 100);
    const send = (now_ms: number) =>
      prefixes.sent('a', prompt, prefixes.view(prompt, now_ms), { now_ms, streams: false, kv_tokens: 0 });
    const first = send(0);
    const second = send(1);
    const pending_tokens = (): number => prefixes.view(prompt, 2).prefills.get('a')!.pending_tokens;
    expect(pending_tokens()).toBe(first.uncached_tokens + second.uncached_tokens);
    prefixes.ended(second, undefined);
    expect(pending_tokens()).toBe(first.uncached_tokens);
    prefixes.began(first, 2);
    prefixes.ended(first, undefined);
    expect(pending_tokens()).toBe(0);
  });

  it('holds no more for a replica than its KV cache does', () => {
    const prefixes = knowledge();
    for (let turn = 0; turn < 10; turn++) {
      const prompt = promptOf(1000 * turn, 50);
      prefixes.sent('a', prompt, prefixes.view(prompt, turn), {
        now_ms: turn,
        streams: true,
        kv_tokens: 1600,
      });
    }
    const held = (turn: number): number =>
      prefixes.view(promptOf(1000 * turn, 50), 20).held_tokens.get('a') ?? 0;
    expect([held(9), held(8), held(7)]).toEqual([799, 799, 0]);
  });

  it('believes what an engine says it holds, once that can be known', () => {
    const prefixes = knowledge();
    const prompt = promptOf(1, 40);
    const ids = Int32Array.from({ length: 640 }, (_, index) => index);
    const resident = new ResidentBlocks(1000);
    const residents = new Map([['a', resident]]);
    prefixes.sent('a', prompt, prefixes.view(prompt, 0, residents), { ...sending, now_ms: 0 });
    prefixes.spelled(prompt, ids, 16);
    const held = (now_ms: number, session_id = 'a'): number | undefined =>
      prefixes.view(prompt, now_ms, residents).held_tokens.get(session_id);
    // It says nothing yet; and when it does, what was sent a moment ago is on its way.
    expect(held(60_000)).toBe(639);
    resident.reset(16);
    expect(held(1000)).toBe(639);
    expect(held(60_000)).toBeUndefined();
    const hashes = tokenHashes(ids, 16);
    for (const hash of hashes.subarray(0, 10)) resident.change(hash);
    expect(held(60_000)).toBe(160);
    resident.change(hashes[3]! + tokenHash_end);
    expect(held(60_000)).toBe(48);
    // What another gateway had computed elsewhere.
    const other = new ResidentBlocks(1000);
    other.reset(16);
    for (const hash of hashes) other.change(hash);
    residents.set('b', other);
    expect(held(60_000, 'b')).toBe(639);
    // Of a prompt that leaves the known one, only what they have in common.
    const leaves = { ...prompt, blocks: Uint32Array.from([...prompt.blocks.subarray(0, 10), 9999]) };
    expect(prefixes.view(leaves, 60_000, residents).held_tokens.get('b')).toBe(160);
    resident.end();
    expect(held(60_000)).toBe(639);
  });

  it('is bounded, whatever an engine says', () => {
    const resident = new ResidentBlocks(100);
    resident.change(5);
    expect(resident.size).toBe(0);
    resident.reset(16);
    for (let block = 1; block <= 100; block++) resident.change(block);
    expect(resident).toMatchObject({ size: 100, told: true });
    resident.change(101);
    expect(resident).toMatchObject({ size: 0, told: false });
    for (let block = 1; block <= 100; block++) resident.change(block);
    expect(resident.size).toBe(0);
  });
});

describe('the time that a miss costs', () => {
  const viewOf = (change: Partial<PromptView>): PromptView => ({
    tokens: 4000,
    held_tokens: new Map(),
    prefills: new Map(),
    prefill_tokens_per_s: 1000,
    elsewhere: 0,
    ...change,
  });

  it('is what is to be computed at the speed of the replica, behind what it has to do', () => {
    const view = viewOf({
      held_tokens: new Map([['a', 3000]]),
      prefills: new Map([
        ['a', { pending_tokens: 500, tokens_per_s: 500 }],
        ['b', { pending_tokens: 0, tokens_per_s: 2000 }],
      ]),
    });
    const weight = 12;
    // To compute all of it again costs 0.3 of an answer's time beside that.
    const moved_s = 0.3 * (asked.expected_ms / 1000);
    const pair = [candidate('a'), candidate('b')];
    expect(missCost_s(candidate('a'), view, asked)).toBeCloseTo(1 + 2 * weight + moved_s / 4);
    expect(missCost_s(candidate('b'), view, asked)).toBeCloseTo(2 * weight + moved_s);
    expect(missCost_s(candidate('c'), view, asked)).toBeCloseTo(4 * weight + moved_s);
    expect(byMissCost(pair, pair, view, asked)!.session_id).toBe('b');
  });

  it('sends a prompt to who has it, until the queue there costs more than the miss', () => {
    const queue = (pending_tokens: number) =>
      viewOf({
        held_tokens: new Map([['a', 3000]]),
        prefills: new Map([['a', { pending_tokens, tokens_per_s: 1000 }]]),
      });
    const all = [candidate('a'), candidate('b')];
    const prompt = { prefix: 1, conversation: 1 };
    expect(byMissCost(all, all, queue(35_000), { ...asked, prompt })!.session_id).toBe('a');
    expect(byMissCost(all, all, queue(38_000), { ...asked, prompt })!.session_id).toBe('b');
  });

  it('sends what another gateway may have sent where hashing has it, of several gateways alone', () => {
    const all = [candidate('a'), candidate('b')];
    const choose = (elsewhere: number, pending: string) => {
      const prefills = new Map([[pending, { pending_tokens: 2000, tokens_per_s: 1000 }]]);
      const request = { ...asked, prompt: { prefix: 5, conversation: 0 } };
      return byMissCost(all, all, viewOf({ elsewhere, prefills }), request)!.session_id;
    };
    const home = choose(0, 'nobody');
    const other = home === 'a' ? 'b' : 'a';
    expect(choose(0, home)).toBe(other);
    expect(choose(0.8, home)).toBe(home);
  });

  it('is the same choice for every gateway where nobody knows the prompt', () => {
    fc.assert(
      fc.property(fc.nat(), fc.integer({ min: 1, max: 8 }), (prefix, count) => {
        const all = Array.from({ length: count }, (_, index) => candidate(`s${index}`));
        const request = { ...asked, prompt: { prefix, conversation: 0 } };
        const chosen = byMissCost(all, all, viewOf({}), request);
        expect(byMissCost([...all].reverse(), all, viewOf({}), request)).toBe(chosen);
        const left = all.filter((each) => each !== chosen);
        const unknown = viewOf({ prefills: new Map() });
        if (left.length > 0) expect(left).toContain(byMissCost(left, left, unknown, request));
      }),
    );
  });

  it('does not give one replica all that begin alike, however many sequences its engine takes', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 2, max: 8 }),
        fc.integer({ min: 100, max: 800 }),
        (replicas, requests) => {
          const running = new Array<number>(replicas).fill(0);
          const view = viewOf({ held_tokens: new Map([['s0', 3900]]) });
          for (let sent = 0; sent < requests; sent++) {
            const all = running.map((count, index) =>
              candidate(`s${index}`, { native: false, running: count, max_sequences: 1024 }),
            );
            const prompt = { prefix: 1, conversation: sent };
            const request = { now_ms: 0, expected_tokens: 4400, ...asked, prompt, view };
            const index = all.indexOf(byEngine(1024).choose(all, request, [], sent)!);
            running[index] = running[index]! + 1;
          }
          expect(Math.max(...running)).toBeLessThanOrEqual(
            Math.max(16, Math.ceil((1.5 * requests) / replicas)),
          );
          // As far as that goes, they are where their beginning is computed.
          expect(Math.max(...running)).toBe(running[0]);
        },
      ),
      { numRuns: 20 },
    );
  });

  it('counts in tokens whether a prompt is long enough to look for', () => {
    const policy = byEngine(1024);
    const request = {
      now_ms: 0,
      expected_ms: 1000,
      expected_tokens: 100,
      prompt: { prefix: 3, conversation: 3 },
    };
    const busy = candidate('has it', { running: 3 });
    const all = [busy, candidate('idle')];
    const held = (tokens: number) => viewOf({ tokens, held_tokens: new Map([['has it', tokens - 1]]) });
    expect(policy.choose(all, { ...request, view: held(1000) }, [], 1)).toBe(busy);
    expect(policy.choose(all, { ...request, view: held(200) }, [], 1)).not.toBe(busy);
  });
});
