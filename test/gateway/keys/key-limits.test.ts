/** Limits of keys, by a clock that the test turns, over gateways that the test plays. */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { KeyLimits } from '../../../gateway/keys/key-limits.ts';
import {
  lastMinute,
  monthBegin,
  type Spent,
  spentAt,
  sumSpent,
  untilWithin_s,
} from '../../../gateway/keys/spending.ts';
import { type ApiKey, dayOf } from '../../../ledger/index.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { gatewayFolderOf } from '../../../spec/gateway-folders.ts';
import type { KeySettings } from '../../../spec/key-settings.ts';

const noDevices = { day_device_s: 0, month_device_s: 0, total_device_s: 0 };
let root: string;
let now_ms: number;
const open: KeyLimits[] = [];

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'hpcserve-limits-'));
  now_ms = Date.UTC(2026, 2, 31, 12);
});
afterEach(async () => {
  for (const limits of open.splice(0)) await limits.close();
  rmSync(root, { recursive: true });
});

/** A gateway whose ledger holds so much of every key. */
async function gateway(number: number, recorded: Partial<Record<number, number>> = {}): Promise<KeyLimits> {
  const gateway_folder = gatewayFolderOf(root, number);
  mkdirSync(gateway_folder, { recursive: true });
  const limits = new KeyLimits({
    gateway_folder,
    ledger: {
      spentSince: (_key, day) => ({
        requests: 0,
        device_s: 0,
        tokens: Object.entries(recorded)
          .filter(([on]) => Number(on) >= day)
          .reduce((sum, [, tokens]) => sum + tokens!, 0),
      }),
    },
    log: pino({ enabled: false }),
    now_ms: () => now_ms,
    exchange_ms: 3600_000,
  });
  open.push(limits);
  await limits.start([]);
  return limits;
}

function keyWith(settings: KeySettings): ApiKey {
  return { id: 'key_1', name: 'alice', created_at_ms: 0, settings };
}

/** A request whose body was read. */
function admitted(limits: KeyLimits, key: ApiKey, expected_tokens: number): ReturnType<KeyLimits['admit']> {
  const reservation = limits.admit(key);
  if (reservation) limits.reserve(key, reservation, expected_tokens);
  return reservation;
}

function refusal(limits: KeyLimits, key: ApiKey, expected_tokens = 0): HpcserveError | undefined {
  try {
    limits.settle(admitted(limits, key, expected_tokens), {});
    return undefined;
  } catch (error) {
    if (error instanceof HpcserveError) return error;
    throw error;
  }
}

function use(limits: KeyLimits, key: ApiKey, tokens: number): void {
  limits.settle(admitted(limits, key, 0), { prompt_tokens: tokens });
}

/** Tokens that are held of the key, as one with a limit by the minute is told. */
function heldOf(limits: KeyLimits): number {
  const limit = 1e9;
  return limit - limits.ratesLeft(keyWith({ tokens_per_minute: limit }))![1]![0];
}

describe('requests a minute', () => {
  const key = keyWith({ requests_per_minute: 10 });

  it('are refused beyond, until the time that is told', async () => {
    const limits = await gateway(1);
    for (let count = 0; count < 10; count++) expect(refusal(limits, key)).toBeUndefined();
    const error = refusal(limits, key)!;
    expect(error.code).toBe('E_KEY_RATE');
    const wait_s = error.details.retry_after_s as number;
    now_ms += (wait_s - 1) * 1000 - 1;
    expect(refusal(limits, key)?.code).toBe('E_KEY_RATE');
    now_ms += 1001;
    expect(refusal(limits, key)).toBeUndefined();
  });

  it('never pass twice the limit within any 60 s, and steadily below it nobody is refused', async () => {
    const limits = await gateway(1);
    const admitted: number[] = [];
    for (let step = 0; step < 3000; step++) {
      now_ms += 100;
      if (!refusal(limits, key)) admitted.push(now_ms);
    }
    // 300 s at 10 a minute, and at most one limit at the beginning.
    expect(admitted.length).toBeGreaterThan(45);
    expect(admitted.length).toBeLessThanOrEqual(60);
    for (const begin of admitted)
      expect(admitted.filter((at) => at >= begin && at < begin + 60_000).length).toBeLessThanOrEqual(20);
    now_ms += 120_000;
    for (let count = 0; count < 30; count++) {
      now_ms += 6700;
      expect(refusal(limits, key)).toBeUndefined();
    }
  });

  it('count at the other gateway once they have spoken', async () => {
    const [one, two] = [await gateway(1), await gateway(2)];
    for (let count = 0; count < 7; count++) expect(refusal(one, key)).toBeUndefined();
    await one.exchange();
    await two.exchange();
    const admitted = Array.from({ length: 10 }, () => refusal(two, key)).filter((error) => !error);
    // `two` looks for other gateways with its next exchange but nine: it knew `one` from its start.
    expect(admitted).toHaveLength(3);
  });
});

describe('tokens', () => {
  it('a minute are counted when they are known, and held while they are not', async () => {
    const limits = await gateway(1);
    const key = keyWith({ tokens_per_minute: 1000 });
    const held = [400, 400, 400].map((tokens) => admitted(limits, key, tokens));
    expect(refusal(limits, key)?.message).toContain('1000 tokens a minute');
    expect(refusal(limits, key)?.because.join()).toContain('1200 of them are held');
    for (const reservation of held) limits.settle(reservation, { prompt_tokens: 50, completion_tokens: 50 });
    expect(limits.spent(key)!.tokens).toBe(300);
    expect(refusal(limits, key)).toBeUndefined();
  });

  it.each([1e300, Number.POSITIVE_INFINITY, Number.NaN])(
    'that are held beside %d stay held, and what is given back is gone',
    async (absurd) => {
      const limits = await gateway(1);
      const key = keyWith({ budget: { tokens: 10_000, window: 'total' } });
      const first = limits.admit(key)!;
      const second = limits.admit(key)!;
      const third = limits.admit(key)!;
      limits.reserve(key, first, 8000);
      // It was let in: less than its budget is held. From then on nobody is.
      limits.reserve(key, second, absurd);
      expect(() => limits.reserve(key, third, 1)).toThrow('is used up');
      limits.settle(second, {});
      limits.settle(third, {});
      expect(heldOf(limits)).toBe(8000);
      const last = admitted(limits, key, 2000);
      expect(refusal(limits, key)?.because.join()).toContain('10000 are held');
      limits.settle(last, {});
      limits.settle(first, {});
      expect(heldOf(limits)).toBe(0);
    },
  );

  it('of a key without a bound are held to the last one', async () => {
    const limits = await gateway(1);
    const key = keyWith({ budget: { device_s: 1, window: 'total' } });
    const held = [8000.25, 1e19, 1e19, 7].map((tokens) => admitted(limits, key, tokens));
    limits.settle(held[1], {});
    limits.settle(held[2], {});
    limits.settle(held[3], {});
    expect(heldOf(limits)).toBe(8001);
  });

  it('of a budget begin anew with the day, the month, or never', async () => {
    const today = dayOf(now_ms);
    const limits = await gateway(1, { [today - 40]: 1000, [today - 5]: 100, [today]: 10 });
    const spentIn = (window: 'day' | 'month' | 'total'): number =>
      limits.spent(keyWith({ budget: { tokens: 1, window } }))![`${window}_tokens`];
    expect([spentIn('day'), spentIn('month'), spentIn('total')]).toEqual([10, 110, 1110]);
    const day = keyWith({ budget: { tokens: 60, window: 'day' } });
    use(limits, day, 50);
    const error = refusal(limits, day)!;
    expect(error.code).toBe('E_KEY_BUDGET');
    expect(error.because.join()).toBe('60 of 60 tokens were used');
    // Noon: the next day, which is also the next month, is twelve hours away.
    expect(error.details.retry_after_s).toBe(12 * 3600);
    expect(
      refusal(limits, keyWith({ budget: { tokens: 160, window: 'month' } }))!.details.retry_after_s,
    ).toBe(12 * 3600);
    expect(refusal(limits, keyWith({ budget: { tokens: 1160, window: 'total' } }))!.details).toEqual({});
    now_ms += 12 * 3600_000;
    expect([spentIn('day'), spentIn('month'), spentIn('total')]).toEqual([0, 0, 1160]);
    expect(refusal(limits, day)).toBeUndefined();
  });

  it('of a gateway that ended still count, and of one that starts again are not counted twice', async () => {
    const key = keyWith({ budget: { tokens: 1000, window: 'total' } });
    const [one, two] = [await gateway(1), await gateway(2)];
    use(one, key, 600);
    await one.exchange();
    open.splice(open.indexOf(one), 1);
    await two.exchange();
    use(two, key, 100);
    expect(two.spent(key)!.total_tokens).toBe(700);
    await two.exchange();
    const again = await gateway(1, { [dayOf(now_ms)]: 600 });
    await again.exchange();
    expect(again.spent(key)!.total_tokens).toBe(700);
  });
});

describe('keys without limits', () => {
  it('are not counted, and are as their ledger says once they have some', async () => {
    const recorded: Partial<Record<number, number>> = {};
    const limits = await gateway(1, recorded);
    const limited = keyWith({ budget: { tokens: 100, window: 'total' } });
    use(limits, limited, 10);
    expect(limits.admit(keyWith({}))).toBeUndefined();
    recorded[dayOf(now_ms)] = 95;
    expect(limits.spent(keyWith({}))).toBeUndefined();
    expect(limits.spent(limited)!.total_tokens).toBe(95);
  });
});

it('tell of a derived key what is left of those of its parent', async () => {
  const limits = await gateway(1);
  const parent = keyWith({ requests_per_minute: 10, tokens_per_minute: 1000 });
  const derived: ApiKey = { ...parent, id: 'key_2', parent_id: parent.id };
  use(limits, parent, 100);
  use(limits, derived, 50);
  admitted(limits, derived, 200);
  expect(limits.rateHeaders(derived)).toEqual(limits.rateHeaders(parent));
  expect(limits.ratesLeft(derived)!.map((rate) => rate![0])).toEqual([7, 650]);
});

describe('counts of a minute', () => {
  it('are of the last 60 s, and when they are below a limit is told to the second', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 0, max: 100 }),
        fc.integer({ min: 0, max: 100 }),
        fc.integer({ min: 0, max: 100 }),
        fc.integer({ min: 0, max: 59_999 }),
        (current, previous, limit, into_ms) => {
          const begin = 60_000 * 1000 + into_ms;
          const spent: Spent = {
            minute: 1000,
            requests: current,
            tokens: 0,
            previous_requests: previous,
            previous_tokens: 0,
            day: 0,
            day_tokens: 0,
            month_tokens: 0,
            total_tokens: 0,
            ...noDevices,
          };
          const at = (time_ms: number): number => {
            const { requests, previous_requests } = spentAt(spent, time_ms);
            return lastMinute(requests, previous_requests, time_ms);
          };
          fc.pre(at(begin) > limit);
          const wait_ms = untilWithin_s(current, previous, limit, begin) * 1000;
          expect(at(begin + wait_ms)).toBeLessThanOrEqual(limit + 1e-9);
          if (wait_ms > 1000) expect(at(begin + wait_ms - 1000)).toBeGreaterThan(limit - 1e-9);
        },
      ),
    );
  });

  it('add up over gateways whatever minute each was last asked in', () => {
    const one: Spent = {
      minute: 10,
      requests: 5,
      tokens: 50,
      previous_requests: 2,
      previous_tokens: 20,
      day: 0,
      day_tokens: 70,
      month_tokens: 70,
      total_tokens: 70,
      ...noDevices,
    };
    const sum = sumSpent([one, { ...one, minute: 11 }, { ...one, minute: 8 }], 11 * 60_000 + 5);
    expect(sum).toMatchObject({ minute: 11, requests: 5, previous_requests: 7, total_tokens: 210 });
    expect(monthBegin(dayOf(Date.UTC(2028, 1, 29, 5)))).toBe(dayOf(Date.UTC(2028, 1, 1)));
  });
});
