/** What a gateway makes of devices that tell of their steps and links: which replica it chooses, and what it shows. */
import { describe, expect, it } from 'vitest';
import { RoutingTable } from '../../../gateway/routing/table.ts';
import { byEngine } from '../../../solver/routing/by-engine.ts';
import type { ModelLoad } from '../../../spec/agent-state.ts';
import type { DeviceDescription } from '../../../spec/session-record.ts';
import { recordOf } from '../session-records.ts';

const gb = 1e9;
const policy = byEngine(10);
const asked = { now_ms: 1_000_000, expected_ms: 1, expected_tokens: 1 };
const slice: DeviceDescription = {
  kind: 'mig',
  model: 'GH200 480GB MIG 3g.48gb',
  memory_bytes: 47 * 2 ** 30,
  isa: [],
};

/** Sessions on slices, each with its models and how many requests these have. */
class Slices {
  readonly table = new RoutingTable<null>();

  add(session_id: string, node: string, link: string | undefined, models: Record<string, number>): this {
    const record = recordOf(session_id, Object.keys(models));
    const device = { ...slice };
    if (link !== undefined) device.link = link;
    this.table.set({ ...record, metadata: { ...record.metadata, node, devices: [device] } }, null);
    this.table.setReachable(session_id, true);
    this.tell(session_id, models);
    return this;
  }

  tell(session_id: string, models: Record<string, number>, more: Partial<ModelLoad> = {}): void {
    const loads = Object.entries(models).map(
      ([name, running]): ModelLoad => ({
        ...{ name, running, state: 'serving', waiting: 0, max_sequences: 4 },
        ...{ kv_tokens_total: 0, kv_tokens_used: 0 },
        // A step of 150 ms in every 250, of a link that gives 382.
        streamed: { arena_bytes: gb, resident_bytes: 0, step_bytes: 60 * gb, link_bytes_per_s_max: 400 * gb },
        compute_ms: 1,
        ...more,
      }),
    );
    this.table.report(session_id, loads);
  }

  /** Who is chosen by one of many lots. */
  chosen(model: string): Set<string> {
    const { candidates } = this.table.find(model)!;
    const lots = Array.from({ length: 40 }, (_, seed) => policy.choose(candidates, asked, [], seed)!);
    return new Set(lots.map(({ session_id }) => session_id));
  }
}

const bothSides = (): Slices =>
  new Slices()
    .add('a', 'n1', 'GPU-1', { m: 0 })
    .add('a2', 'n1', 'GPU-1', { other: 1 })
    .add('b', 'n2', 'GPU-2', { m: 0 })
    .add('b2', 'n2', 'GPU-2', { other: 0 });

describe('requests of a model that several devices stream', () => {
  it('go to the device whose neighbours do not read', () => {
    const slices = bothSides();
    expect(slices.chosen('m')).toEqual(new Set(['b']));
    slices.tell('a2', { other: 0 });
    expect(slices.chosen('m')).toEqual(new Set(['a', 'b']));
    slices.tell('b2', { other: 1 });
    expect(slices.chosen('m')).toEqual(new Set(['a']));
  });

  it('go to any of them where neighbours read over other links: of other nodes, or of their own', () => {
    for (const [node, link] of [
      ['n3', 'GPU-1'],
      ['n1', 'GPU-3'],
      ['n1', undefined],
    ] as const) {
      const slices = new Slices()
        .add('a', 'n1', 'GPU-1', { m: 0 })
        .add('b', 'n2', 'GPU-2', { m: 0 })
        .add('other', node, link, { other: 1 });
      expect(slices.chosen('m')).toEqual(new Set(['a', 'b']));
    }
  });

  it('count what was sent before the next heartbeat, and nobody who cannot be reached', () => {
    const slices = bothSides();
    slices.tell('a2', { other: 0 });
    const [sent] = slices.table.find('other')!.candidates.filter(({ session_id }) => session_id === 'b2');
    sent!.asked();
    expect(slices.chosen('m')).toEqual(new Set(['a']));
    slices.table.setReachable('b2', false);
    expect(slices.chosen('m')).toEqual(new Set(['a', 'b']));
  });

  it('count models beside them on the device, those that lie there, too', () => {
    const slices = new Slices().add('a', 'n1', 'GPU-1', { m: 0, lies: 2 }).add('b', 'n2', 'GPU-2', { m: 0 });
    slices.table.report('a', [loadOf('lies', 2, { compute_ms: 50 })]);
    expect(slices.chosen('m')).toEqual(new Set(['b']));
    slices.table.report('a', [loadOf('lies', 0, { compute_ms: 50 })]);
    expect(slices.chosen('m')).toEqual(new Set(['a', 'b']));
  });

  it('join a batch that has begun, as ever, unless its budgets do not hold it', () => {
    const slices = bothSides();
    slices.tell('b', { m: 1 });
    expect(slices.chosen('m')).toEqual(new Set(['b']));
    slices.tell('a2', { other: 0 });
    slices.tell('b2', { other: 4 }, { compute_ms: 1 });
    expect(slices.chosen('m')).toEqual(new Set(['a']));
  });

  it('are placed as ever where devices tell nothing: agents of an earlier version', () => {
    const slices = bothSides();
    for (const session_id of ['a', 'b']) slices.tell(session_id, { m: 0 }, untold);
    expect(slices.chosen('m')).toEqual(new Set(['a', 'b']));
    slices.tell('a', { m: 2 }, untold);
    expect(slices.chosen('m')).toEqual(new Set(['a']));
    // Of a neighbour that tells nothing nobody knows that it reads.
    const beside = bothSides();
    beside.tell('a2', { other: 1 }, untold);
    expect(beside.chosen('m')).toEqual(new Set(['a', 'b']));
  });
});

describe('what is taken of a link', () => {
  it('is told once of each, with what it gives', () => {
    const shown = bothSides()
      .table.linkedDevices()
      .map(({ node, name, use }) => ({ node, name, ...use }));
    expect(shown).toHaveLength(2);
    expect(shown[0]).toMatchObject({ node: 'n1', name: 'GPU-1', devices: 2, reading: 1 });
    expect(shown[0]!.due_bytes_per_s).toBeCloseTo(240 * gb);
    // One of them reached more than is assumed of all.
    expect(shown[0]!.capacity_bytes_per_s).toBe(400 * gb);
    expect(shown[1]).toMatchObject({ node: 'n2', reading: 0, due_bytes_per_s: 0 });
  });

  it('is told of a device of its own by its session, and of none that streams nothing', () => {
    const slices = new Slices().add('abcdef0123', 'n1', undefined, { m: 3 }).add('b', 'n1', 'GPU-1', {});
    const shown = slices.table.linkedDevices();
    expect(shown.map(({ name }) => name)).toEqual(['of session abcdef01']);
  });
});

const untold = { streamed: undefined, compute_ms: undefined } as unknown as Partial<ModelLoad>;

function loadOf(name: string, running: number, more: Partial<ModelLoad>): ModelLoad {
  return {
    ...{ name, running, state: 'serving', waiting: 0, max_sequences: 4 },
    ...{ kv_tokens_total: 0, kv_tokens_used: 0 },
    ...more,
  };
}
