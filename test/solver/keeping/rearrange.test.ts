/** From what runs to what a new plan wants: as little ends as can, and all that is wanted is there. */
import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type KeptPlace, rearrange, startInRoomOf } from '../../../solver/keeping/rearrange.ts';
import { modelSchema } from '../../../spec/model-yaml.ts';
import type { PlannedLaunch } from '../../../spec/plan.ts';
import { gpus } from '../placement/support.ts';

/** A job on one node with these models, a device each: `m@kind`, and `m2@kind` for a split over two. */
function job(node_kind: string, models: readonly string[], first = 0): PlannedLaunch {
  let next = 0;
  const units = models.map((name, index) => {
    const tensor = name.endsWith('2') ? 2 : 1;
    const first_device = next;
    next += tensor;
    return {
      unit: `${name[0]}-${first + index}`,
      node_index: 0,
      engine: 'vllm' as const,
      model_path: '/m',
      model: modelSchema.parse({ name: name[0], source: '/m' }),
      device_kind: 'gpu' as const,
      device_count: tensor,
      tensor,
      pipeline: 1,
      first_device,
      threads: 1,
      context_tokens: 1024,
      kv_tokens: 1024,
      weight_bytes: 1,
    };
  });
  return {
    node_kind,
    tier: 'stable',
    partitions: [],
    node_count: 1,
    devices_per_node: { kind: 'gpu', model: node_kind.toUpperCase(), count: next, memory_bytes: 40e9 },
    cpus_per_node: 4 * next,
    memory_bytes_per_node: 100 * next,
    units,
  };
}
const places = (...jobs: PlannedLaunch[]): KeptPlace[] =>
  jobs.map((planned, index) => ({ launch_id: String(index), planned }));
const names = (jobs: readonly PlannedLaunch[]): string[] =>
  jobs.flatMap(({ units }) => units.map(({ unit }) => unit));

describe('a new plan', () => {
  it('leaves what it has the same alone, however it numbers and packs it', () => {
    const standing = places(job('a', ['m'], 5), job('a', ['m', 'm'], 7), job('b', ['n']));
    const { staying, leaving, starting } = rearrange(standing, [
      job('b', ['n'], 3),
      job('a', ['m', 'm', 'm']),
    ]);
    expect(staying).toEqual(['0', '1', '2']);
    expect(leaving).toEqual([]);
    expect(starting).toEqual([]);
  });

  it('starts only what is missing, under names that nobody has', () => {
    const { leaving, starting } = rearrange(places(job('a', ['m', 'm'])), [
      job('a', ['m', 'm', 'm']),
      job('b', ['m'], 3),
    ]);
    expect(leaving).toEqual([]);
    expect(names(starting)).toEqual(['m-2', 'm-3']);
    // What it needs of devices, cores and memory of the job it was planned in.
    expect(starting[0]).toMatchObject({
      devices_per_node: { count: 1 },
      cpus_per_node: 4,
      memory_bytes_per_node: 100,
      units: [{ first_device: 0 }],
    });
  });

  it('moves what is elsewhere or split otherwise', () => {
    expect(rearrange(places(job('a', ['m'])), [job('b', ['m'])])).toMatchObject({
      leaving: ['0'],
      starting: [{ node_kind: 'b', units: [{ unit: 'm-0' }] }],
    });
    expect(rearrange(places(job('a', ['m'])), [job('a', ['m2'])])).toMatchObject({
      leaving: ['0'],
      starting: [{ units: [{ tensor: 2 }] }],
    });
  });

  it('keeps a job most of which is wanted, and the rest of it serves instead of one elsewhere', () => {
    const standing = places(job('a', ['m', 'm', 'm']));
    expect(rearrange(standing, [job('a', ['m', 'm'])])).toMatchObject({ staying: ['0'], starting: [] });
    expect(rearrange(standing, [job('a', ['m', 'm']), job('b', ['m'], 2)])).toMatchObject({
      staying: ['0'],
      starting: [],
    });
    expect(rearrange(standing, [job('a', ['m'])])).toMatchObject({
      leaving: ['0'],
      starting: [{ units: [{ unit: 'm-0' }] }],
    });
  });

  it('gives new names beside replicas that stay whatever is planned', () =>
    expect(names(rearrange([], [job('a', ['m', 'm'])], ['m-0', 'm-2']).starting)).toEqual(['m-1', 'm-3']));

  it('knows what would start in the room of what leaves', () => {
    const full = [gpus('A', 40, 1, { free: [{ nodes: 1, devices: 0, cpus: 64 }] })];
    expect(startInRoomOf([job('a', ['m2'])], [job('a', ['m', 'm'])], full)).toBe(true);
    expect(startInRoomOf([job('a', ['m2'])], [job('a', ['m'])], full)).toBe(false);
    expect(startInRoomOf([job('a', ['m2'])], [job('b', ['m', 'm'])], full)).toBe(false);
  });
});

describe('any plan over anything that runs', () => {
  const arbitraryJob = fc
    .record({
      kind: fc.constantFrom('a', 'b'),
      models: fc.array(fc.constantFrom('m', 'm2', 'n'), { minLength: 1, maxLength: 4 }),
    })
    .map(({ kind, models }) => job(kind, models));
  const jobs = fc.array(arbitraryJob, { maxLength: 6 });
  const countsOf = (all: readonly PlannedLaunch[]): Map<string, number> => {
    const counts = new Map<string, number>();
    for (const { units } of all)
      for (const { model } of units) counts.set(model.name, (counts.get(model.name) ?? 0) + 1);
    return counts;
  };

  it('has every replica that is wanted in the end, each under a name of its own', () =>
    fc.assert(
      fc.property(jobs, jobs, (running, proposed) => {
        // As they are named in one deployment.
        const seen = new Map<string, number>();
        const standing = places(...running).map(({ launch_id, planned }) => ({
          launch_id,
          planned: {
            ...planned,
            units: planned.units.map((unit) => {
              const number = seen.get(unit.model.name) ?? 0;
              seen.set(unit.model.name, number + 1);
              return { ...unit, unit: `${unit.model.name}-${number}` };
            }),
          },
        }));
        const { staying, leaving, starting } = rearrange(standing, proposed);
        expect([...staying, ...leaving].sort()).toEqual(standing.map(({ launch_id }) => launch_id).sort());
        const after = [
          ...standing.filter(({ launch_id }) => staying.includes(launch_id)).map(({ planned }) => planned),
          ...starting,
        ];
        const wanted = countsOf(proposed);
        const there = countsOf(after);
        for (const [model, count] of wanted) expect(there.get(model) ?? 0).toBeGreaterThanOrEqual(count);
        expect(new Set(names(after)).size).toBe(names(after).length);
        for (const { units, devices_per_node } of starting) {
          const taken = units.flatMap(({ first_device, device_count }) =>
            Array.from({ length: device_count }, (_, at) => first_device + at),
          );
          expect([...taken].sort()).toEqual(Array.from({ length: devices_per_node.count }, (_, at) => at));
        }
      }),
    ));

  it('changes nothing where the plan is what runs', () =>
    fc.assert(
      fc.property(jobs, (running) => {
        const { leaving, starting } = rearrange(places(...running), [...running].reverse());
        expect(leaving).toEqual([]);
        expect(starting).toEqual([]);
      }),
    ));
});
