/**
 * Models that come, go, grow, compute in more or less and fall short on one device, in random interleavings: what is
 * promised, what is counted as held, and what engines really have may never exceed the pool.
 */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { DecisionLog } from '../../../../agent/device-worker/compute/decision-log.ts';
import { DeviceMemory } from '../../../../agent/device-worker/compute/device-memory.ts';
import type { KvHolder } from '../../../../agent/device-worker/compute/kv-budgets.ts';
import type { DeviceView, InstanceView } from '../../../../solver/sharing/device-view.ts';
import { kvDemand } from '../../../../solver/sharing/kv-budget.ts';
import { decoding, device, exact, instance } from '../../../solver/sharing/support.ts';

const pool_bytes = 100_000;
const kv_bytes_max = 40_000;
const settings = { ...exact, kv_tokens_min: 2000 };

/** KV as an engine has it: taken token by token within the budget, given up when a sequence ends. */
class OnDemandKv implements KvHolder {
  /** A new engine has all that it may ever have. */
  budget_bytes = kv_bytes_max;
  kv_bytes_used = 0;

  setKvBudget(bytes: number): number {
    this.budget_bytes = bytes;
    return this.in_force_bytes;
  }

  /** It may take so much without asking anybody. */
  get in_force_bytes(): number {
    return Math.max(this.budget_bytes, this.kv_bytes_used);
  }

  take(bytes: number): void {
    this.kv_bytes_used = Math.max(
      this.kv_bytes_used,
      Math.min(this.budget_bytes, this.kv_bytes_used + bytes),
    );
  }

  release(share: number): void {
    this.kv_bytes_used = Math.floor(this.kv_bytes_used * (1 - share));
  }
}

const model = fc.nat({ max: 4 });
const step = fc.oneof(
  fc.record({
    do: fc.constant('come' as const),
    model,
    weight_bytes: fc.integer({ min: 1000, max: 30_000 }),
  }),
  fc.record({ do: fc.constant('go' as const), model }),
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant('ask' as const),
      model,
      tokens: fc.integer({ min: 1, max: 16_000 }),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({ do: fc.constant('grow' as const), model, bytes: fc.nat({ max: 30_000 }) }),
  },
  fc.record({ do: fc.constant('end' as const), model, share: fc.double({ min: 0, max: 1, noNaN: true }) }),
  fc.record({ do: fc.constant('work' as const), model, bytes: fc.nat({ max: 10_000 }) }),
  fc.record({ do: fc.constant('rescue' as const), model }),
  fc.record({ do: fc.constant('whole' as const), model, kv_bytes: fc.nat({ max: 80_000 }) }),
  fc.record({ do: fc.constant('move' as const), model, to: model, bytes: fc.nat({ max: 10_000 }) }),
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

interface Hosted {
  instance: InstanceView & { kv_bytes_max: number };
  kv: OnDemandKv;
}

class Pressed {
  readonly device: DeviceView = device('d', [], { pool_bytes: Number.POSITIVE_INFINITY });
  readonly memory = new DeviceMemory(this.device, settings, new DecisionLog());
  readonly hosted = new Map<number, Hosted>();
  /** Budgets that fell below what their sequences hold, rises that were promised, and those that were not. */
  fell = 0;
  rose = 0;
  denied = 0;
  /** Pipelines that had room beside what others' requests need, and those that had none. */
  whole = 0;
  refused = 0;
  #requests = 0;

  do(step: Step): void {
    const one = this.hosted.get(step.model);
    if (step.do === 'come') {
      if (!one) this.#come(step.model, step.weight_bytes);
      return;
    }
    if (!one) return;
    const { instance: own, kv } = one;
    const before_bytes = own.kv_bytes;
    switch (step.do) {
      case 'go':
        this.device.instances.splice(this.device.instances.indexOf(own), 1);
        this.hosted.delete(step.model);
        kv.kv_bytes_used = 0;
        this.memory.remove(own.id);
        break;
      case 'ask': {
        const newcomer = decoding(`r${this.#requests++}`, { input_tokens: step.tokens });
        if (this.memory.provide(own, [...own.requests, newcomer])) own.requests.push(newcomer);
        else this.denied++;
        break;
      }
      case 'grow':
        kv.take(step.bytes);
        break;
      case 'end':
        own.requests.splice(0, Math.ceil(step.share * own.requests.length));
        kv.release(step.share);
        this.memory.settle();
        // Somebody is always away who would need more than there is.
        this.memory.shrink(own, own.requests, pool_bytes);
        break;
      case 'work':
        this.memory.work(own, step.bytes);
        break;
      case 'rescue':
        this.memory.rescue(own, own.requests);
        break;
      case 'whole':
        this.#whole(step.kv_bytes);
        break;
      case 'move': {
        const to = this.hosted.get(step.to);
        if (!to || to === one) break;
        kv.kv_bytes_used = Math.max(0, kv.kv_bytes_used - step.bytes);
        this.memory.move(own, to.instance, step.bytes);
      }
    }
    if (own.kv_bytes > before_bytes) this.rose++;
    for (const other of this.hosted.values())
      if (other.kv.kv_bytes_used > other.instance.kv_bytes) this.fell++;
  }

  #come(at: number, weight_bytes: number): void {
    const own = {
      ...instance(`m${at}`, [], { weight_bytes, kv_bytes: 0, stays: true }),
      kv_bytes_max,
    };
    if (!this.memory.couldAdd(own, pool_bytes)) return;
    const kv = new OnDemandKv();
    this.memory.add(own, kv, pool_bytes);
    this.device.instances.push(own);
    this.hosted.set(at, { instance: own, kv });
  }

  /** A pipeline is on its way back, and does not come after all. */
  #whole(kv_bytes: number): void {
    const needs = ({ instance: own }: Hosted): number =>
      own.requests.length === 0
        ? 0
        : Math.min(own.kv_bytes, kvDemand({ ...own, requests: own.requests }, settings).required_bytes);
    const needed = [...this.hosted.values()].map((one) => ({ one, bytes: needs(one) }));
    const sizes = { weight_bytes: 1000, kv_bytes_per_token: 1, kv_bytes_max: kv_bytes };
    if (this.memory.reserveWhole('cut', sizes, ({ requests }) => requests)) this.whole++;
    else this.refused++;
    for (const { one, bytes } of needed) expect(one.instance.kv_bytes).toBeGreaterThanOrEqual(bytes);
    this.check();
    this.memory.remove('cut');
  }

  check(): void {
    const all = [...this.hosted.values()];
    if (all.length === 0) return;
    const sum = (of: (one: Hosted) => number): number => all.reduce((total, one) => total + of(one), 0);
    // Optimistic: what is promised, once everything is through.
    expect(this.device.budget_bytes).toBeLessThanOrEqual(pool_bytes);
    expect(sum((one) => one.instance.kv_bytes)).toBeLessThanOrEqual(this.device.budget_bytes);
    // Pessimistic: what engines may take now counts as held, and fits.
    expect(this.device.held_bytes).toBeLessThanOrEqual(pool_bytes);
    expect(sum((one) => one.kv.in_force_bytes)).toBeLessThanOrEqual(this.device.held_bytes);
  }
}

it('never exceeds the pool, by promises, by books, and by what engines have, in every interleaving', () => {
  const seen = { fell: 0, rose: 0, denied: 0, whole: 0, refused: 0 };
  fc.assert(
    fc.property(fc.array(step, { minLength: 20, maxLength: 120 }), (steps) => {
      const pressed = new Pressed();
      for (const one of steps) {
        pressed.do(one);
        pressed.check();
      }
      // Once every sequence has ended, nothing is held beyond what is promised, and nobody waits.
      for (const { kv } of pressed.hosted.values()) kv.kv_bytes_used = 0;
      pressed.memory.settle();
      for (const { instance: own, kv } of pressed.hosted.values()) expect(kv.budget_bytes).toBe(own.kv_bytes);
      if (pressed.hosted.size > 0) expect(pressed.device.held_bytes).toBe(pressed.device.budget_bytes);
      seen.fell += pressed.fell;
      seen.rose += pressed.rose;
      seen.denied += pressed.denied;
      seen.whole += pressed.whole;
      seen.refused += pressed.refused;
    }),
    { numRuns: 2000 },
  );
  // The pressure was there.
  expect(Math.min(...Object.values(seen)), JSON.stringify(seen)).toBeGreaterThan(20);
});
