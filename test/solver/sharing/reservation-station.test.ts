import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type MemoryOperation, ReservationStation } from '../../../solver/sharing/reservation-station.ts';

type Action = { kind: 'submit'; owner: number; bytes: number } | { kind: 'complete'; which: number };

const actions = fc.array(
  fc.oneof(
    {
      weight: 3,
      arbitrary: fc.record({
        kind: fc.constant('submit' as const),
        owner: fc.nat({ max: 4 }),
        bytes: fc.nat({ max: 70 }),
      }),
    },
    { weight: 2, arbitrary: fc.record({ kind: fc.constant('complete' as const), which: fc.nat() }) },
  ),
  { maxLength: 80 },
);

/**
 * Memory as it is: an operation that gives memory up has it until its end, one that takes memory has it from its start.
 */
class Memory {
  readonly bytes = new Map<string, number>();
  readonly running: MemoryOperation[] = [];
  most = 0;

  start(operations: readonly MemoryOperation[]): void {
    for (const operation of operations) {
      expect(this.running.some(({ owner }) => owner === operation.owner)).toBe(false);
      this.running.push(operation);
      const now = this.bytes.get(operation.owner) ?? 0;
      this.bytes.set(operation.owner, Math.max(now, operation.to_bytes));
    }
    this.most = Math.max(this.most, this.total());
  }

  end(at: number): MemoryOperation {
    const [operation] = this.running.splice(at, 1);
    this.bytes.set(operation!.owner, operation!.to_bytes);
    return operation!;
  }

  total(): number {
    return [...this.bytes.values()].reduce((sum, bytes) => sum + bytes, 0);
  }
}

describe('the reservation station', () => {
  it('never lets memory exceed the pool, and ends with what was promised, in every interleaving', () => {
    let waited = 0;
    let rejected = 0;
    fc.assert(
      fc.property(actions, (list: Action[]) => {
        const station = new ReservationStation(100);
        const memory = new Memory();
        const promised = new Map<string, number>();
        for (const action of list) {
          if (action.kind === 'complete') {
            if (memory.running.length === 0) continue;
            memory.start(station.complete(memory.end(action.which % memory.running.length).id));
          } else {
            const owner = `o${action.owner}`;
            const others = [...promised].reduce(
              (sum, [name, bytes]) => sum + (name === owner ? 0 : bytes),
              0,
            );
            const less = action.bytes <= (promised.get(owner) ?? 0);
            const submission = station.submit(owner, action.bytes);
            // Optimistic: exactly what fits once everything is through.
            expect(submission.accepted).toBe(less || others + action.bytes <= 100);
            if (submission.accepted) {
              promised.set(owner, action.bytes);
              memory.start(submission.run);
            } else rejected++;
          }
          expect(memory.total()).toBeLessThanOrEqual(100);
          expect(station.held_bytes).toBe(memory.total());
          expect(station.budget_bytes).toBe([...promised.values()].reduce((sum, bytes) => sum + bytes, 0));
          waited += station.waiting.length;
        }
        while (memory.running.length > 0) memory.start(station.complete(memory.end(0).id));
        // Nobody waits in vain.
        expect(station.waiting).toEqual([]);
        for (const [owner, bytes] of promised) expect(memory.bytes.get(owner) ?? 0).toBe(bytes);
        expect(memory.most).toBeLessThanOrEqual(100);
      }),
      { numRuns: 1000 },
    );
    expect(waited).toBeGreaterThan(100);
    expect(rejected).toBeGreaterThan(100);
  });

  it('holds a rise back until what was promised away is gone (the paper’s hazard)', () => {
    const station = new ReservationStation(100);
    const first = station.submit('a', 80);
    if (!first.accepted) throw new Error('a fits');
    expect(station.complete(first.id)).toEqual([]);
    const fall = station.submit('a', 30);
    const rise = station.submit('b', 60);
    if (!fall.accepted || !rise.accepted) throw new Error('both fit the budget');
    expect(fall.run.map(({ owner }) => owner)).toEqual(['a']);
    expect(rise.run).toEqual([]);
    // A smaller one that fits overtakes it.
    const small = station.submit('c', 10);
    expect(small.accepted && small.run.map(({ owner }) => owner)).toEqual(['c']);
    expect(station.held_bytes).toBe(90);
    expect(station.complete(fall.id)).toEqual([{ id: rise.id, owner: 'b', from_bytes: 0, to_bytes: 60 }]);
  });

  it('replaces a rise that has not begun by what its owner wants now', () => {
    const station = new ReservationStation(100);
    const [a, b] = [station.submit('a', 90), station.submit('b', 10)];
    if (!a.accepted || !b.accepted) throw new Error('both fit');
    station.complete(a.id);
    station.complete(b.id);
    station.submit('a', 20);
    const rise = station.submit('b', 70);
    const less = station.submit('b', 5);
    if (!rise.accepted || !less.accepted) throw new Error('both fit');
    expect(less.supersedes).toBe(rise.id);
    expect(less.run.map(({ to_bytes }) => to_bytes)).toEqual([5]);
  });

  it('says by how much a rise exceeds the pool, and refuses nonsense', () => {
    const station = new ReservationStation(100);
    station.submit('a', 70);
    expect(station.submit('b', 50)).toEqual({
      accepted: false,
      short_bytes: 20,
      because: '50 bytes more for b exceed the pool by 20',
    });
    expect(() => station.submit('b', -1)).toThrow(RangeError);
    expect(() => station.complete(99)).toThrow(RangeError);
    expect(() => new ReservationStation(0)).toThrow(RangeError);
  });
});
