/** Who is to answer: properties of the routing policies, whatever the replicas look like. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { RoutingTable } from '../../../gateway/routing/table.ts';
import { estimateLoad_s } from '../../../solver/reuse/affinity.ts';
import { type AliasMember, orderMembers } from '../../../solver/routing/alias.ts';
import { byEngine } from '../../../solver/routing/by-engine.ts';
import { type Candidate, type RoutedRequest, requestsAt } from '../../../solver/routing/candidate.ts';
import { leastLoad } from '../../../solver/routing/least-load.ts';
import { byPrefix } from '../../../solver/routing/prefix-affinity.ts';
import { promptKeys, scopedKeys } from '../../../solver/routing/prompt-keys.ts';
import type { ModelLoad } from '../../../spec/agent-state.ts';
import { recordOf } from '../../gateway/session-records.ts';

const idle: Omit<Candidate, 'session_id'> = {
  running: 0,
  waiting: 0,
  max_sequences: 4,
  unreported: 0,
  unanswered: 0,
  kv_tokens_total: 0,
  kv_tokens_used: 0,
  native: true,
  cpu: false,
};
const asked: RoutedRequest = { now_ms: 1_000_000, expected_ms: 10_000, expected_tokens: 100 };

function candidate(session_id: string, change: Partial<Candidate> = {}): Candidate {
  return { ...idle, session_id, ...change };
}

const arbitrary = fc
  .record({
    running: fc.nat(20),
    waiting: fc.nat(20),
    max_sequences: fc.integer({ min: 1, max: 20 }),
    unreported: fc.integer({ min: -5, max: 5 }),
    unanswered: fc.integer({ min: 0, max: 5 }),
    kv_tokens_total: fc.constantFrom(0, 1000),
    kv_tokens_used: fc.nat(1000),
    native: fc.boolean(),
    cpu: fc.boolean(),
    too_slow: fc.boolean(),
    device_taken: fc.boolean(),
    budget_load: fc.constantFrom(undefined, 0.2, 0.5, 0.9, 1, 1.3, 2, 40),
    weights: fc.option(
      fc.record({
        bytes: fc.constant(100),
        resident_bytes: fc.constantFrom(0, 50, 100),
        load_bytes_per_s: fc.constantFrom(0, 10, 100),
        resting: fc.boolean(),
      }),
      { nil: undefined },
    ),
    job_end_time_ms: fc.option(fc.integer({ min: 990_000, max: 1_030_000 }), { nil: undefined }),
  })
  .map((one): Omit<Candidate, 'session_id'> => ({ ...one, cpu: one.cpu && one.native }));
const candidates = fc
  .array(arbitrary, { maxLength: 8 })
  .map((all) => all.map((one, index): Candidate => ({ session_id: `s${index}`, ...one })));
const prompts = fc.option(fc.record({ prefix: fc.nat(), conversation: fc.nat() }), { nil: undefined });
const queue = 10;

function isPossible(one: Candidate, excluded: readonly string[]): boolean {
  return !excluded.includes(one.session_id) && requestsAt(one) < one.max_sequences + queue;
}

function fits(one: Candidate): boolean {
  const kv = one.kv_tokens_used + (Math.max(0, one.unreported) + 1) * asked.expected_tokens;
  return requestsAt(one) < one.max_sequences && (one.kv_tokens_total === 0 || kv <= one.kv_tokens_total);
}

/** Until the answer's end, with as much of a duration before it as there are more requests than places. */
const lasts = (one: Candidate): boolean => {
  const excess = Math.max(0, requestsAt(one) + 1 - one.max_sequences);
  const end_ms = asked.now_ms + asked.expected_ms + (excess * asked.expected_ms) / one.max_sequences;
  return one.job_end_time_ms === undefined || one.job_end_time_ms >= end_ms;
};

describe.each([
  ['least load', leastLoad(queue)],
  ['by engine', byEngine(queue)],
] as const)('%s', (_name, policy) => {
  it('chooses nobody who is excluded or full, somebody where there is one, and the same for the same seed', () => {
    fc.assert(
      fc.property(candidates, prompts, fc.nat(), fc.nat(9), (all, prompt, seed, index) => {
        const excluded = [`s${index}`];
        const chosen = policy.choose(all, { ...asked, prompt }, excluded, seed);
        const possible = all.filter((one) => isPossible(one, excluded));
        if (possible.length === 0) expect(chosen).toBeUndefined();
        else expect(possible).toContain(chosen);
        expect(policy.choose(all, { ...asked, prompt }, excluded, seed)).toBe(chosen);
      }),
    );
  });

  it('spreads over equals evenly', () => {
    const all = ['a', 'b', 'c'].map((id) => candidate(id, { running: 1 }));
    const counts = new Map<string, number>();
    for (let seed = 0; seed < 3000; seed++) {
      const { session_id } = policy.choose(all, asked, [], seed)!;
      counts.set(session_id, (counts.get(session_id) ?? 0) + 1);
    }
    for (const count of counts.values()) expect(Math.abs(count - 1000)).toBeLessThan(150);
    expect(counts.size).toBe(3);
  });
});

describe('least load', () => {
  it('chooses where no load is less', () => {
    fc.assert(
      fc.property(candidates, fc.nat(), (all, seed) => {
        const chosen = leastLoad(queue).choose(all, asked, [], seed);
        if (!chosen) return;
        const loads = all
          .filter((one) => isPossible(one, []))
          .map((one) => requestsAt(one) / one.max_sequences);
        expect(requestsAt(chosen) / chosen.max_sequences).toBe(Math.min(...loads));
      }),
    );
  });
});

describe('by engine', () => {
  const policy = byEngine(queue);

  it('leaves whose job ends before the answer for last', () => {
    fc.assert(
      fc.property(candidates, prompts, fc.nat(), (all, prompt, seed) => {
        const chosen = policy.choose(all, { ...asked, prompt }, [], seed);
        if (chosen && !lasts(chosen))
          expect(all.filter((one) => isPossible(one, []) && lasts(one))).toEqual([]);
      }),
    );
  });

  it('takes native replicas that fit: those too slow for their promise or with time or link too short last, those that stand before others, those on CPUs first, of equals the fullest, of idle ones the least loaded', () => {
    fc.assert(
      fc.property(candidates, prompts, fc.nat(), (all, prompt, seed) => {
        const lasting = all.map((one) => ({ ...one, job_end_time_ms: undefined }));
        const chosen = policy.choose(lasting, { ...asked, prompt }, [], seed);
        const fitting = lasting.filter((one) => one.native && fits(one));
        if (fitting.length === 0) return;
        expect(fitting).toContain(chosen);
        const stands = (one: Candidate): boolean => !one.weights?.resting || requestsAt(one) > 0;
        const isOver = (one: Candidate): boolean => stands(one) && (one.budget_load ?? 0) > 1;
        const fast = fitting.filter((one) => !one.too_slow && !isOver(one));
        const quick = fast.length > 0 ? fast : fitting;
        const standing = quick.filter(stands);
        const some = standing.length > 0 ? standing : quick;
        const onCpu = some.filter(({ cpu }) => cpu);
        const pool = onCpu.length > 0 ? onCpu : some;
        expect(pool).toContain(chosen);
        if (standing.length > 0) {
          const within = pool.filter((one) => !isOver(one));
          const least = (all: readonly Candidate[]): number =>
            Math.min(...all.map(({ budget_load = 0 }) => budget_load));
          if (within.length === 0) expect(chosen!.budget_load).toBe(least(pool));
          else {
            expect(within).toContain(chosen);
            const most = Math.max(...within.map(requestsAt));
            expect(requestsAt(chosen!)).toBe(most);
            if (most === 0) expect(chosen!.budget_load ?? 0).toBe(least(within));
          }
        } else {
          const free = pool.filter(({ device_taken }) => !device_taken);
          const devices = free.length > 0 ? free : pool;
          const load_s = (one: Candidate): number => estimateLoad_s(one.weights!);
          expect(devices).toContain(chosen);
          expect(load_s(chosen!)).toBe(Math.min(...devices.map(load_s)));
        }
      }),
    );
  });

  it('brings models that rest back where most of them lies: one load for the requests of a model, each on a device of its own', () => {
    const table = new RoutingTable<null>();
    const load = (name: string, resident_bytes: number): ModelLoad => ({
      name,
      state: 'serving',
      running: 0,
      waiting: 0,
      max_sequences: 4,
      kv_tokens_total: 0,
      kv_tokens_used: 0,
      weights: { bytes: 100, resident_bytes, load_bytes_per_s: 10, resting: true },
    });
    for (const [session_id, one, other] of [
      ['near', 90, 80],
      ['far', 40, 30],
      ['farther', 10, 20],
    ] as const) {
      table.set(recordOf(session_id, ['one', 'other']), null);
      table.setReachable(session_id, true);
      table.report(session_id, [load('one', one), load('other', other)]);
    }
    const ask = (model: string): string => {
      const chosen = policy.choose(table.find(model)!.candidates, asked, [], 3)!;
      chosen.unreported++;
      return chosen.session_id;
    };
    expect(ask('one')).toBe('near');
    expect(ask('one')).toBe('near');
    expect(ask('other')).toBe('far');
    // It came back there, and its device is free again.
    table.report('near', [{ ...load('one', 100), running: 4, weights: undefined } as ModelLoad]);
    expect(ask('one')).toBe('farther');
  });

  it('chooses as ever where devices tell nothing of their links, or all the same', () => {
    fc.assert(
      fc.property(candidates, prompts, fc.nat(), fc.constantFrom(0.3, 1), (all, prompt, seed, load) => {
        const untold = all.map((one) => ({ ...one, budget_load: undefined }));
        const alike = all.map((one) => ({ ...one, budget_load: load }));
        const chosen = policy.choose(untold, { ...asked, prompt }, [], seed)?.session_id;
        expect(policy.choose(alike, { ...asked, prompt }, [], seed)?.session_id).toBe(chosen);
      }),
    );
  });

  it('fills one batch before it begins another, and then goes on to the next', () => {
    const running = [0, 0, 0];
    const order: number[] = [];
    for (let request = 0; request < 12; request++) {
      const all = running.map((count, index) => candidate(String(index), { running: count }));
      const chosen = Number(policy.choose(all, asked, [], 7)!.session_id);
      running[chosen] = running[chosen]! + 1;
      order.push(chosen);
    }
    expect(running).toEqual([4, 4, 4]);
    expect(order.filter((one, index) => index > 0 && one !== order[index - 1])).toHaveLength(2);
  });

  it('wakes an engine that sleeps only where the others are half full', () => {
    const asleep = candidate('asleep', { native: false, asleep: true });
    const awake = (running: number): Candidate => candidate('awake', { native: false, running });
    const prompt = { prefix: 1, conversation: 1 };
    for (const running of [0, 1]) {
      expect(policy.choose([asleep, awake(running)], asked, [], 1)!.session_id).toBe('awake');
      expect(policy.choose([asleep, awake(running)], { ...asked, prompt }, [], 1)!.session_id).toBe('awake');
    }
    expect(policy.choose([asleep, awake(3)], asked, [], 1)).toBe(asleep);
    expect(policy.choose([asleep], { ...asked, prompt }, [], 1)).toBe(asleep);
  });

  it('sends waiting requests where the load is least, and nobody to a replica without room for its tokens', () => {
    const full = candidate('full', { running: 4 });
    const fuller = candidate('fuller', { running: 4, waiting: 3 });
    expect(policy.choose([fuller, full], asked, [], 1)).toBe(full);
    const noMemory = candidate('no memory', { kv_tokens_total: 1000, kv_tokens_used: 950 });
    const wrapped = candidate('wrapped', { native: false, running: 3 });
    expect(policy.choose([noMemory, wrapped], asked, [], 1)).toBe(wrapped);
    expect(policy.choose([noMemory], asked, [], 1)).toBe(noMemory);
  });
});

describe('prompts that begin alike', () => {
  const text = (seed: number, length: number): string =>
    Array.from({ length }, (_, index) => String.fromCharCode(97 + ((index * seed + (index >> 3)) % 26))).join(
      '',
    );

  it('have the same prefix, whatever comes behind it, however it is cut into messages', () => {
    const system = text(7, 5000);
    const one = promptKeys([system, 'what is a?'], 2)!;
    const other = promptKeys([system, 'and what is b, please?'], 2)!;
    expect(one.prefix).toBe(other.prefix);
    expect(one.conversation).not.toBe(other.conversation);
    expect(promptKeys([system.slice(0, 100), system.slice(100), 'x'], 1)!.prefix).toBe(one.prefix);
    expect(promptKeys([text(11, 5000), 'what is a?'], 2)!.prefix).not.toBe(one.prefix);
    expect(promptKeys(['short'], 1)).toBeUndefined();
    expect(scopedKeys(one, undefined)).toBe(one);
    expect(scopedKeys(one, 'a')).toEqual(scopedKeys(one, 'a'));
    expect(scopedKeys(one, 'a')!.prefix).not.toBe(scopedKeys(one, 'b')!.prefix);
    expect(scopedKeys(one, 'a')!.conversation).not.toBe(one.conversation);
    expect(scopedKeys(undefined, 'a')).toBeUndefined();
  });

  it('keep it through a conversation until its length doubles', () => {
    const parts = [text(3, 2100), 'first'];
    const first = promptKeys(parts, 2)!;
    const later = promptKeys([...parts, text(5, 900), 'second', text(9, 900), 'third'], 2)!;
    expect(later).toEqual(first);
    const long = promptKeys([...parts, text(5, 9000)], 2)!;
    expect(long.prefix).not.toBe(first.prefix);
    expect(long.conversation).toBe(first.conversation);
  });

  const wrapped = (count: number, running = 0, max_sequences = 8): Candidate[] =>
    Array.from({ length: count }, (_, index) =>
      candidate(`session-${index}`, { native: false, running, max_sequences }),
    );

  it('go to one replica, different ones to all of them, and only those of a lost one move', () => {
    const all = wrapped(5);
    const home = (prefix: number, of: readonly Candidate[]): string =>
      byEngine(queue).choose(of, { ...asked, prompt: { prefix, conversation: prefix } }, [], prefix)!
        .session_id;
    const counts = new Map<string, number>();
    for (let prefix = 0; prefix < 1000; prefix++) {
      const chosen = home(prefix, all);
      counts.set(chosen, (counts.get(chosen) ?? 0) + 1);
      expect(home(prefix, [...all].reverse())).toBe(chosen);
      const left = all.filter(({ session_id }) => session_id !== 'session-2');
      if (chosen !== 'session-2') expect(home(prefix, left)).toBe(chosen);
    }
    expect(counts.size).toBe(5);
    for (const count of counts.values()) expect(count).toBeGreaterThan(120);
  });

  it('never make a replica much fuller than the mean, even if all of them are the same', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 2, max: 8 }),
        fc.integer({ min: 1, max: 32 }),
        fc.integer({ min: 1, max: 200 }),
        fc.nat(),
        (replicas, max_sequences, requests, prefix) => {
          const running = new Array<number>(replicas).fill(0);
          for (let sent = 0; sent < Math.min(requests, replicas * max_sequences); sent++) {
            const all = running.map((count, index) =>
              candidate(`s${index}`, { native: false, running: count, max_sequences }),
            );
            const prompt = { prefix, conversation: sent };
            const chosen = byEngine(queue).choose(all, { ...asked, prompt }, [], sent)!;
            const index = all.indexOf(chosen);
            running[index] = running[index]! + 1;
            const mean = (sent + 1) / replicas;
            const bound = Math.max(Math.ceil(1.25 * mean), Math.min(4, Math.ceil(max_sequences / 4)));
            expect(running[index]).toBeLessThanOrEqual(Math.min(max_sequences, bound));
          }
        },
      ),
      { numRuns: 50 },
    );
  });

  it('spill to where their own conversation goes', () => {
    const all = wrapped(4, 1);
    const prefix = 99;
    const home = byPrefix(all, all, { prefix, conversation: 1 })!;
    const busy = all.map((one) => (one === home ? { ...one, running: 7 } : one));
    const spilled = (conversation: number): string =>
      byPrefix(busy, busy, { prefix, conversation })!.session_id;
    const places = new Set(Array.from({ length: 50 }, (_, conversation) => spilled(conversation)));
    expect(places.size).toBe(3);
    expect(places).not.toContain(home.session_id);
    expect(spilled(5)).toBe(spilled(5));
  });
});

describe('an alias of several models', () => {
  const member = (model: string, change: Partial<AliasMember<Candidate>> = {}): AliasMember<Candidate> => ({
    model,
    candidates: [candidate(model)],
    ...change,
  });
  const names = (members: AliasMember<Candidate>[]): string[] =>
    orderMembers(members).map(({ model }) => model);

  it('goes to one that is expected to keep its objectives, however busy the others are', () => {
    const slow = member('slow', { slo: { tpot_ms: 20 }, tpot_ms: 50 });
    const fast = member('fast', {
      slo: { tpot_ms: 20 },
      tpot_ms: 10,
      candidates: [candidate('fast', { running: 3 })],
    });
    expect(names([slow, fast])).toEqual(['fast', 'slow']);
  });

  it('counts the wait for a place into the time to the first token', () => {
    const waiting = member('waiting', {
      slo: { ttft_ms: 1000 },
      ttft_ms: 100,
      duration_ms: 4000,
      candidates: [candidate('waiting', { running: 4, waiting: 1 })],
    });
    const loaded = member('loaded', { slo: { ttft_ms: 1000 }, ttft_ms: 900, duration_ms: 4000 });
    expect(names([waiting, loaded])).toEqual(['loaded', 'waiting']);
  });

  it('takes a model of which nothing is known for good, and else goes by load', () => {
    const late = member('late', { slo: { ttft_ms: 10 }, ttft_ms: 50 });
    const unknown = member('unknown', { slo: { ttft_ms: 10 }, candidates: [candidate('u', { running: 2 })] });
    const promisesNothing = member('free', { candidates: [candidate('f', { running: 1 })] });
    expect(names([late, unknown, promisesNothing])).toEqual(['free', 'unknown', 'late']);
  });

  it('orders every member once, the same whatever the order it was given them in', () => {
    const members = fc.array(
      fc.record({
        ttft_ms: fc.option(fc.integer({ min: 1, max: 100 }), { nil: undefined }),
        slo: fc.option(fc.record({ ttft_ms: fc.integer({ min: 1, max: 100 }) }), { nil: undefined }),
        candidates,
      }),
      { maxLength: 5 },
    );
    fc.assert(
      fc.property(members, (all) => {
        const named = all.map((one, index) => ({ ...one, model: `m${index}` }));
        const order = names(named);
        expect([...order].sort()).toEqual(named.map(({ model }) => model));
        expect(names([...named].reverse())).toEqual(order);
      }),
    );
  });
});
