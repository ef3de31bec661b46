import { describe, expect, it } from 'vitest';
import type { TensorLease, WantedModel } from '../../../agent/memory/pending-load.ts';
import { RegionList } from '../../../agent/memory/region-list.ts';
import { type PoolOwner, ReuseStore } from '../../../agent/memory/reuse-store.ts';
import { seededRandom } from '../../../solver/simulator/random.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';

const unit = 64;

/** A store over real bytes: what a tensor holds is its key, so that lost or overwritten tensors show. */
class TestPool {
  readonly bytes: Uint8Array;
  readonly regions: RegionList<PoolOwner>;
  readonly store: ReuseStore;
  moved = 0;

  constructor(units: number) {
    this.bytes = new Uint8Array(units * unit);
    this.regions = new RegionList<PoolOwner>(units * unit, unit);
    // Copies that cost nearly nothing, so that what is in the way is moved rather than loaded again.
    this.store = new ReuseStore(
      this.regions,
      (to, from, bytes) => {
        this.bytes.copyWithin(to, from, from + bytes);
        this.moved += bytes;
      },
      { load: 2e9, copy: 1e12 },
    );
  }

  /** Loads a model whose tensors are written `name:units`; the first letter of a name is the content. */
  load(
    model: string,
    tensors: string,
  ): { lease: TensorLease; missing: number[]; offsets: readonly number[] } {
    const wanted = wantedModel(model, tensors);
    const pending = this.store.begin(wanted);
    for (const index of pending.missing) this.#write(pending.offsets[index]!, wanted, index);
    const lease = pending.commit(1);
    this.check(lease, wanted);
    this.store.verify();
    return { lease, missing: [...pending.missing], offsets: lease.offsets };
  }

  check(lease: TensorLease, { tensors }: WantedModel): void {
    tensors.forEach(({ keys, bytes }, index) => {
      const found = this.bytes.subarray(lease.offsets[index]!, lease.offsets[index]! + bytes);
      if (!found.every((byte) => byte === content(keys[0]!)))
        expect.fail(`${keys[0]} at ${lease.offsets[index]} holds ${found.join(' ')}`);
    });
  }

  #write(offset: number, { tensors }: WantedModel, index: number): void {
    const { keys, bytes } = tensors[index]!;
    this.bytes.fill(content(keys[0]!), offset, offset + bytes);
  }
}

function wantedModel(model: string, tensors: string): WantedModel {
  return {
    model,
    latency_sensitivity: 1,
    tensors: tensors.split(' ').map((text) => {
      const [keys, units] = text.split(':') as [string, string];
      return { keys: keys.split('='), bytes: Number(units) * unit };
    }),
  };
}

function content(key: string): number {
  let hash = 7;
  for (const letter of key) hash = (hash * 31 + letter.charCodeAt(0)) % 251;
  return hash + 1;
}

const code = (act: () => unknown): string => {
  try {
    act();
  } catch (error) {
    if (error instanceof HpcserveError) return error.code;
    throw error;
  }
  return 'none';
};

describe('the reuse store', () => {
  it('finds every tensor of a model again after its instance has gone', () => {
    const pool = new TestPool(16);
    const first = pool.load('m', 'a:4 b:2 c:3');
    expect(first.missing).toEqual([0, 1, 2]);
    first.lease.release();
    expect(pool.store.stats()).toMatchObject({ active_bytes: 0, reusable_bytes: 9 * unit });
    const again = pool.load('m', 'a:4 b:2 c:3');
    expect(again.missing).toEqual([]);
    expect(again.offsets).toEqual(first.offsets);
  });

  it('gives models that share tensors the same regions, and keeps them for the last of both', () => {
    const pool = new TestPool(16);
    const one = pool.load('one', 'base:6 x:2');
    const two = pool.load('two', 'base:6 y:2');
    expect(two.missing).toEqual([1]);
    expect(two.offsets[0]).toBe(one.offsets[0]);
    one.lease.release();
    expect(code(() => pool.load('three', 'z:9'))).toBe('E_POOL_FULL');
    expect(pool.store.stats().active_bytes).toBe(8 * unit);
    two.lease.release();
    expect(pool.load('three', 'z:15').missing).toEqual([0]);
  });

  it('loads a tensor once that a model wants twice', () => {
    const pool = new TestPool(8);
    const { missing, offsets } = pool.load('m', 'a:4 b:1 a:4');
    expect(missing).toEqual([0, 1]);
    expect(offsets[2]).toBe(offsets[0]);
  });

  it('never finds a tensor whose load did not end', () => {
    const pool = new TestPool(8);
    const pending = pool.store.begin(wantedModel('m', 'a:4 b:2'));
    expect(pool.store.residentWeights_bytes(wantedModel('m', 'a:4 b:2').tensors)).toBe(0);
    expect(pool.store.stats().active_bytes).toBe(6 * unit);
    pool.store.verify();
    pending.abort();
    pool.store.verify();
    expect(pool.store.stats()).toMatchObject({ active_bytes: 0, reusable_bytes: 0, free_bytes: 8 * unit });
    expect(() => pending.commit(1)).toThrow('has ended already');
    expect(pool.load('m', 'a:4 b:2').missing).toEqual([0, 1]);
  });

  it('keeps what was there of a model whose load failed', () => {
    const pool = new TestPool(12);
    pool.load('one', 'base:6').lease.release();
    pool.store.begin(wantedModel('two', 'base:6 y:2')).abort();
    expect(pool.load('one', 'base:6').missing).toEqual([]);
  });

  it('never uses regions again that somebody may still write to', () => {
    const pool = new TestPool(12);
    pool.store.begin(wantedModel('m', 'a:4')).abandon();
    pool.store.verify();
    expect(pool.store.stats()).toMatchObject({ lost_bytes: 4 * unit, free_bytes: 8 * unit });
    expect(code(() => pool.load('n', 'b:9'))).toBe('E_POOL_FULL');
    expect(pool.load('n', 'b:8').missing).toEqual([0]);
  });

  it('drops the second of two loads that brought the same tensor, when its users are gone', () => {
    const pool = new TestPool(12);
    const wanted = wantedModel('m', 'a:4');
    const [one, two] = [pool.store.begin(wanted), pool.store.begin({ ...wanted, model: 'n' })];
    const leases = [one.commit(1), two.commit(1)];
    pool.store.verify();
    expect(one.offsets).not.toEqual(two.offsets);
    for (const lease of leases) lease.release();
    pool.store.verify();
    expect(pool.store.stats().reusable_bytes).toBe(4 * unit);
  });

  it('leaves the pool as it was where a model does not fit', () => {
    const pool = new TestPool(12);
    const used = pool.load('used', 'a:4');
    pool.load('idle', 'b:4').lease.release();
    const before = [...pool.regions].map(({ offset, bytes }) => [offset, bytes]);
    expect(code(() => pool.load('large', 'b:4 c:5'))).toBe('E_POOL_FULL');
    expect([...pool.regions].map(({ offset, bytes }) => [offset, bytes])).toEqual(before);
    used.lease.release();
    expect(pool.load('idle', 'b:4').missing).toEqual([]);
  });

  it('gives up the tensors of the model that is asked for least', () => {
    const pool = new TestPool(12);
    for (const model of ['often', 'rare', 'often', 'often']) pool.load(model, `${model}:5`).lease.release();
    pool.load('new', 'n:5').lease.release();
    expect(pool.store.residentWeights_bytes(wantedModel('often', 'often:5').tensors)).toBe(5 * unit);
    expect(pool.store.residentWeights_bytes(wantedModel('rare', 'rare:5').tensors)).toBe(0);
  });

  it('keeps a model that users would wait for over one of a batch job', () => {
    const pool = new TestPool(12);
    const begin = (model: string, latency_sensitivity: number): void => {
      const pending = pool.store.begin({ ...wantedModel(model, `${model}:5`), latency_sensitivity });
      pending.commit(1).release();
    };
    begin('chat', 1);
    begin('batch', 0.1);
    begin('next', 1);
    expect(pool.store.residentWeights_bytes(wantedModel('chat', 'chat:5').tensors)).toBe(5 * unit);
  });

  it('moves what is in the way without harm to it, and finds it at its new place', () => {
    const pool = new TestPool(12);
    for (const name of ['a', 'b', 'c', 'd']) pool.load(name, `${name}:3`).lease.release();
    // b and d are asked for all the time, so that only a and c are given up: two holes with b between them.
    for (let turn = 0; turn < 12; turn++)
      for (const name of ['b', 'd']) pool.load(name, `${name}:3`).lease.release();
    const large = pool.load('large', 'l:6');
    expect(pool.moved).toBe(3 * unit);
    for (const name of ['b', 'd']) expect(pool.load(name, `${name}:3`).missing).toEqual([]);
    large.lease.release();
  });

  it('finds a tensor by a name that became known later', () => {
    const pool = new TestPool(8);
    pool.load('m', 'file1:4').lease.release();
    pool.store.alias('file1', 'content');
    pool.store.alias('unknown', 'other');
    pool.store.verify();
    const wanted = wantedModel('copy', 'content=file2:4');
    expect(pool.store.residentWeights_bytes(wanted.tensors)).toBe(4 * unit);
    pool.store.begin(wanted).commit(1).release();
    expect(pool.store.residentWeights_bytes(wantedModel('copy', 'file2:4').tensors)).toBe(4 * unit);
    pool.store.verify();
  });

  it('notices books that contradict one another', () => {
    const pool = new TestPool(8);
    pool.load('m', 'a:4');
    const owner = [...pool.regions][0]!.owner as unknown as { users: number; keys: string[] };
    owner.users = 0;
    expect(code(() => pool.store.verify())).toBe('E_POOL_INTEGRITY');
    owner.users = 1;
    owner.keys = ['b'];
    expect(code(() => pool.store.verify())).toBe('E_POOL_INTEGRITY');
    owner.keys = ['a'];
    pool.store.verify();
  });

  it('keeps every byte of every tensor over a long random history', () => {
    const random = seededRandom(3);
    const below = (limit: number): number => Math.floor(limit * random());
    const pool = new TestPool(120);
    const models = Array.from({ length: 10 }, (_, model) => ({
      model: `m${model}`,
      tensors: Array.from(
        { length: 2 + below(6) },
        (_, index) => `${index === 0 && model % 3 === 0 ? 'shared:5' : `m${model}t${index}:${1 + below(9)}`}`,
      ).join(' '),
    }));
    const live: { lease: TensorLease; wanted: WantedModel }[] = [];
    let refused = 0;
    let reused = 0;
    for (let turn = 0; turn < 600; turn++) {
      const { model, tensors } = models[below(models.length)]!;
      const wanted = wantedModel(model, tensors);
      if (live.length > 0 && random() < 0.5) live.splice(below(live.length), 1)[0]!.lease.release();
      const failed = random() < 0.1;
      try {
        if (failed) pool.store.begin(wanted).abort();
        else {
          const { lease, missing } = pool.load(model, tensors);
          if (missing.length === 0) reused++;
          live.push({ lease, wanted });
        }
      } catch (error) {
        if (!(error instanceof HpcserveError) || error.code !== 'E_POOL_FULL') throw error;
        refused++;
      }
      pool.store.verify();
      for (const one of live) pool.check(one.lease, one.wanted);
    }
    expect(refused).toBeGreaterThan(10);
    expect(reused).toBeGreaterThan(100);
    expect(pool.moved).toBeGreaterThan(0);
  });
});
