/** Plans of models whose weights stay in host memory: what they take, what they promise, what is refused. */
import { describe, expect, it } from 'vitest';
import { findDevice } from '../../../solver/catalog/devices.ts';
import { checkPlacement } from '../../../solver/placement/check.ts';
import { place } from '../../../solver/placement/placement.ts';
import { withoutResident } from '../../../solver/placement/resident-layers.ts';
import { arenaFor_bytes, streamedParts_bytes } from '../../../solver/streaming/arena-size.ts';
import { hostLink } from '../../../solver/streaming/host-link.ts';
import { planRing } from '../../../solver/streaming/ring-plan.ts';
import { modelSchema } from '../../../spec/model-yaml.ts';
import { pool_share } from '../../../spec/plan.ts';
import { staging_bytes_max } from '../../../spec/worker-memory.ts';
import { ask, cpus, gguf, gpus } from './support.ts';

const gib = 2 ** 30;
const native = { engines: { native: { available: true } } } as const;
const asked = { weights: 'streamed', context_tokens: 2048 } as const;
/** A model of 37 GiB, and GPUs of 16. */
const small = gpus('T4', 16, 1, { ...native, count: 1 });

describe('a model that is larger than its device', () => {
  it('is placed where its weights are streamed, and nowhere where they are to lie', () => {
    const lying = place(ask([gguf('m', '70b', { context_tokens: 2048 })], [small]));
    expect(lying.unplaced).toEqual([{ model: 'm', replicas: 1 }]);
    expect(lying.rejected[0]).toMatchObject({ constraint: 'device_memory' });
    const { launches, models, unplaced } = place(ask([gguf('m', '70b', asked)], [small]));
    expect(unplaced).toEqual([]);
    const [unit] = launches[0]!.units;
    const arena_bytes = arenaFor_bytes(gguf('m', '70b').summary!);
    expect(unit!.memory!.arena_bytes).toBe(arena_bytes);
    expect(models[0]!.arena_bytes).toBe(arena_bytes);
    // Two layers of eighty and some room, KV, and the margin.
    expect(arena_bytes).toBeLessThan(2 * gib);
    const { device_bytes, kv_bytes, resident_bytes } = unit!.memory!;
    expect(device_bytes - resident_bytes!).toBeGreaterThan(arena_bytes + kv_bytes);
    expect(device_bytes - resident_bytes!).toBeLessThan(arena_bytes + kv_bytes + gib);
    expect(unit!.weight_bytes).toBe(gguf('m', '70b').weight_bytes);
  });

  it('is placed with the native engine alone, whatever engines are there', () => {
    const others = { 'llama.cpp': { available: true }, vllm: { available: true } } as const;
    const without = gpus('T4', 16, 1, { engines: others, count: 1 });
    const { unplaced, rejected } = place(ask([gguf('m', '70b', asked)], [without]));
    expect(unplaced).toEqual([{ model: 'm', replicas: 1 }]);
    expect(rejected[0]).toMatchObject({ constraint: 'engine_unavailable' });
    expect(rejected[0]!.because).toContain('llama.cpp does not stream weights');
    const mixed = place(ask([gguf('m', '70b', asked)], [without, { ...small, node_kind: 'other' }]));
    expect(mixed.launches.map(({ node_kind }) => node_kind)).toEqual(['other']);
    const folder = place(ask([{ ...gguf('m', '70b', asked), format: 'huggingface' }], [without]));
    expect(folder.rejected[0]!.because).toContain('vllm does not stream weights');
  });

  it('is promised no step that is faster than its link', () => {
    const model = gguf('m', '70b', asked);
    const { models } = place(ask([model], [small]));
    const { predicted } = models[0]!.groups[0]!;
    const brought_bytes = model.weight_bytes - models[0]!.resident_bytes! / 1.05;
    const link_ms = (1000 * brought_bytes) / hostLink(findDevice('T4')).bytes_per_s;
    expect(predicted!.tpot_ms).toBeGreaterThan(link_ms);
    expect(predicted!.tpot_ms).toBeLessThan(2 * link_ms);
    expect(models[0]!.reasons.join('\n')).toMatch(
      /weights: streamed: 37\.0 GiB stay in host memory and go through \d/,
    );
    const large = gpus('A100-80GB', 48, 1, { ...native, count: 1 });
    const tpot = (more: object) =>
      place(ask([gguf('m', '70b', { context_tokens: 2048, ...more })], [large])).models[0]!.groups[0]!
        .predicted!.tpot_ms;
    expect(tpot({ weights: 'streamed' })).toBeGreaterThan(2 * tpot({}));
  });

  it('is promised the experts of its tokens alone, where it is a mixture', () => {
    const workload = { rate_per_s: 1e-4, input_tokens: 512, output_tokens: 128 };
    const dense = gguf('m', '70b', { ...asked, workload });
    const experts = { count: 64, used_per_token: 4, n_ff: 448 };
    const mixture = { ...dense, summary: { ...dense.summary!, architecture: 'qwen3moe', experts } };
    const of = (model: typeof dense) => {
      const { groups, reasons } = place(ask([model], [gpus('A100-80GB', 16, 1, { ...native, count: 1 })]))
        .models[0]!;
      return { ...groups[0]!.predicted!, reasons: reasons.join('\n') };
    };
    const [whole, routed] = [of(dense), of(mixture)];
    // Matrices of experts are nearly all of it, and a token needs a sixteenth of them.
    expect(routed.tpot_ms).toBeLessThan(0.6 * whole.tpot_ms);
    // A prompt needs all of them.
    expect(routed.ttft_ms).toBeGreaterThan(0.8 * whole.ttft_ms);
    expect(routed.reasons).toMatch(
      /go through [\d.]+ [GM]iB of the device with every step that needs all experts, [\d.]+ GiB with one of a token: they take \d+ ms at least and \d+ ms at least/,
    );
  });

  it('has its file in the job’s memory, as far as the node goes, and says where that is not all of it', () => {
    const on = (memory_gib: number) =>
      place(ask([gguf('m', '70b', asked)], [{ ...small, memory_bytes: memory_gib * gib }]));
    const model_bytes = gguf('m', '70b').weight_bytes;
    const host = on(64);
    expect(host.launches[0]!.memory_bytes_per_node).toBeGreaterThan(model_bytes);
    expect(host.warnings.join()).not.toMatch(/host memory/);
    const lacking = /host memory lacks ([\d.]+) GiB for weights that are streamed/.exec(
      on(24).warnings.join(),
    );
    const room = 24 - (ask([], []).settings.host_overhead_bytes + staging_bytes_max) / gib;
    expect(Number(lacking?.[1])).toBeCloseTo(model_bytes / gib - room, 1);
    const cpu = cpus('Xeon-8480', 1, ['avx512f'], { memory_bytes: 96 * gib });
    const [launch] = place(ask([gguf('m', '70b', asked)], [cpu])).launches;
    const { page_cache_bytes, memory_bytes_per_node, units } = launch!;
    expect(page_cache_bytes).toBe(model_bytes);
    expect(memory_bytes_per_node - page_cache_bytes!).toBeLessThan(units[0]!.memory!.device_bytes + gib);
  });
});

describe('page-locked copies of weights', () => {
  const reads = { native: { available: true, reads_host_weights: true } } as const;
  const on = (device: string, memory_gib: number, more: object = {}, types = ['Q8_0']) => {
    const model = gguf('m', '70b', { ...asked, ...more });
    const tensors = Object.fromEntries(
      types.map((type) => [type, { tensors: 1, bytes: model.weight_bytes / types.length }]),
    );
    const summary = { ...model.summary!, tensor_types: tensors };
    const offer = gpus(device, 40, 1, { engines: reads, count: 1, memory_bytes: memory_gib * gib });
    const question = ask([{ ...model, summary }], [offer]);
    const placement = place(question);
    expect(checkPlacement(question, placement)).toEqual([]);
    const [launch] = placement.launches;
    const { locked_bytes } = launch!.units[0]!.memory!;
    return { ...placement, launch: launch!, locked_bytes, file_bytes: model.weight_bytes };
  };
  const overhead_bytes = ask([], []).settings.host_overhead_bytes;

  it('are counted in the job’s memory beside its file, once a replica', () => {
    const { launch, locked_bytes, file_bytes, warnings, models } = on('A100-40GB', 512);
    expect(locked_bytes).toBe(file_bytes);
    // The job has all of the node's memory with its only device.
    expect(launch.memory_bytes_per_node).toBe(512 * gib);
    expect(warnings).toEqual([]);
    expect(models[0]!.reasons.join()).toMatch(/up to 37\.0 GiB more of the host hold page-locked copies/);
    const model = gguf('m', '70b', { ...asked, replicas: 2 });
    const summary = { ...model.summary!, tensor_types: { BF16: { tensors: 1, bytes: file_bytes } } };
    const offer = gpus('A100-40GB', 40, 1, { engines: reads, count: 8, memory_bytes: 160 * gib });
    const [both] = place(ask([{ ...model, summary }], [offer])).launches;
    expect(both!.units.map(({ memory }) => memory!.locked_bytes)).toEqual([file_bytes, file_bytes]);
    // Its share of the node is 40 GiB: one file, and a copy each.
    // A worker of each device has memory that KV goes through.
    expect(both!.memory_bytes_per_node).toBe(3 * file_bytes + overhead_bytes + 2 * staging_bytes_max);
  });

  it('have what files leave of the node, and what they lack is said', () => {
    const { launch, locked_bytes, file_bytes, warnings } = on('A100-40GB', 50);
    expect(launch.memory_bytes_per_node).toBe(50 * gib);
    expect(locked_bytes).toBe(50 * gib - overhead_bytes - staging_bytes_max - file_bytes);
    expect(warnings).toEqual([
      'm on a100-40gb: host memory lacks 24.8 GiB for page-locked copies of weights: so much is copied to the device where products would read it in place',
    ]);
    const none = on('A100-40GB', 24);
    expect(none.locked_bytes).toBe(0);
    expect(none.warnings.join()).toMatch(/lacks [\d.]+ GiB for weights that are streamed/);
  });

  it('are of weights alone that products multiply, on devices that have such products', () => {
    expect(on('A100-40GB', 512, {}, ['Q4_K']).locked_bytes).toBeUndefined();
    const { locked_bytes, file_bytes } = on('A100-40GB', 512, {}, ['Q4_K', 'BF16']);
    expect(locked_bytes).toBe(file_bytes / 2);
    expect(on('V100-32GB', 512).locked_bytes).toBeUndefined();
    expect(on('MI250X', 512).locked_bytes).toBeUndefined();
    expect(on('A100-40GB', 512, { batch_invariant: true }).locked_bytes).toBeUndefined();
    const [launch] = place(ask([gguf('m', '70b', asked)], [gpus('A100-40GB', 40, 1, native)])).launches;
    expect(launch!.units[0]!.memory!.locked_bytes).toBeUndefined();
  });

  it('of a mixture are of what every token needs, not of experts', () => {
    const model = gguf('m', '70b', asked);
    const experts = { count: 64, used_per_token: 4, n_ff: 448 };
    const tensor_types = { Q8_0: { tensors: 1, bytes: model.weight_bytes } };
    const summary = { ...model.summary!, architecture: 'qwen3moe', experts, tensor_types };
    const offer = gpus('A100-40GB', 40, 1, { engines: reads, count: 1 });
    const [launch] = place(ask([{ ...model, summary }], [offer])).launches;
    const { locked_bytes } = launch!.units[0]!.memory!;
    expect(locked_bytes).toBeGreaterThan(0);
    expect(locked_bytes).toBeLessThan(0.4 * model.weight_bytes);
  });
});

describe('layers that stay', () => {
  const step_ms = (reasons: readonly string[]): number[] =>
    [...reasons.join('\n').matchAll(/which takes (\d+) ms at least/g)].map(([, ms]) => Number(ms));

  it('are as many as the device has memory left for, and make a step shorter', () => {
    const roomy = gpus('A100-40GB', 40, 1, { ...native, count: 1 });
    const question = ask([gguf('m', '70b', asked)], [roomy]);
    const placement = place(question);
    const { memory } = placement.launches[0]!.units[0]!;
    const [model] = placement.models;
    const pool_bytes = pool_share * 40 * gib;
    expect(memory!.device_bytes).toBeLessThanOrEqual(pool_bytes);
    // No further layer of 80 fits.
    expect(memory!.device_bytes).toBeGreaterThan(pool_bytes - (1.1 * model!.weight_bytes) / 80);
    expect(model!.resident_bytes).toBe(memory!.resident_bytes);
    expect(memory!.share).toBeCloseTo(memory!.device_bytes / (40 * gib), 2);
    const [all_ms, left_ms] = step_ms(model!.reasons);
    const share = memory!.resident_bytes! / 1.05 / model!.weight_bytes;
    expect(share).toBeGreaterThan(0.3);
    expect(left_ms! / all_ms!).toBeCloseTo(1 - share, 2);
    const { predicted } = model!.groups[0]!;
    expect(predicted!.tpot_ms).toBeGreaterThan(left_ms!);
    expect(predicted!.tpot_ms).toBeLessThan(all_ms!);
    expect(model!.reasons.join()).toMatch(
      /layers of [\d.]+ GiB stay on A100-40GB, in memory that nothing else of the plan takes/,
    );
    expect(checkPlacement(question, placement)).toEqual([]);
    memory!.resident_bytes = 39 * gib;
    expect(checkPlacement(question, placement).join()).toMatch(/device 0: \d+ bytes of/);
  });

  it('are all of them where all fit', () => {
    const large = gpus('A100-80GB', 80, 1, { ...native, count: 1 });
    const { models } = place(ask([gguf('m', '70b', asked)], [large]));
    expect(models[0]!.reasons.join()).toMatch(/no step brings any more/);
    const lying = place(ask([gguf('m', '70b', { context_tokens: 2048 })], [large]));
    expect(models[0]!.groups[0]!.predicted!.tpot_ms).toBe(lying.models[0]!.groups[0]!.predicted!.tpot_ms);
  });

  it('are more of a model that is asked more often', () => {
    const workload = (rate_per_s: number) => ({ rate_per_s, input_tokens: 100, output_tokens: 100 });
    const one = { ...asked, max_sequences: 1 };
    const residentOf = (rates: readonly number[]): number[] => {
      const models = rates.map((rate, at) => gguf(`m${at}`, '70b', { ...one, workload: workload(rate) }));
      const { launches } = place(ask(models, [gpus('L4', 24, 1, { ...native, count: 1 })]));
      const units = launches.flatMap((launch) => launch.units);
      expect(units).toHaveLength(rates.length);
      return rates.map(
        (_, at) => units.find(({ model }) => model.name === `m${at}`)!.memory!.resident_bytes ?? 0,
      );
    };
    const [often, seldom] = residentOf([2e-3, 1e-3]);
    expect(often).toBeGreaterThan(10 * gib);
    expect(seldom).toBe(0);
    const [same, other] = residentOf([1e-3, 1e-3]);
    expect(Math.abs(same! - other!)).toBeLessThan(gib);
    expect(same).toBeGreaterThan(5 * gib);
  });

  it('take no memory of CPUs, which the job would have to ask for', () => {
    const cpu = cpus('Xeon-8480', 1, ['avx512f']);
    const { launches, models } = place(ask([gguf('m', '70b', asked)], [cpu]));
    expect(launches[0]!.units[0]!.memory!.resident_bytes).toBeUndefined();
    // They have no link of their own.
    expect(launches[0]!.units[0]!.memory!.link_bytes_per_s).toBeUndefined();
    expect(models[0]!.resident_bytes).toBeUndefined();
  });

  it('take memory of the node where CPUs stand in for the device, as far as it goes', () => {
    const on = (memory_gib: number) => {
      const real = gpus('A100-40GB', 40, 1, { ...native, count: 1, memory_bytes: memory_gib * gib });
      const offer = { ...real, devices: { ...real.devices, emulated: 'cpu' as const } };
      const question = ask([gguf('m', '70b', asked)], [offer]);
      const placement = place(question);
      expect(checkPlacement(question, placement)).toEqual([]);
      const [launch] = placement.launches;
      return { ...launch!, memory: launch!.units[0]!.memory! };
    };
    const roomy = on(128);
    const own_bytes = roomy.memory_bytes_per_node - roomy.page_cache_bytes!;
    expect(own_bytes - roomy.memory.device_bytes).toBe(ask([], []).settings.host_overhead_bytes);
    expect(roomy.memory.resident_bytes).toBeGreaterThan(10 * gib);
    expect(roomy.memory.link_bytes_per_s).toBeUndefined();
    const tight = on(57);
    expect(tight.memory.resident_bytes).toBeLessThan(10 * gib);
    expect(tight.memory.resident_bytes).toBeGreaterThan(5 * gib);
    expect(on(48).memory.resident_bytes).toBeUndefined();
  });

  it('are no matter of a job that runs', () => {
    const planned = (rate_per_s: number) => {
      const workload = { rate_per_s, input_tokens: 100, output_tokens: 100 };
      const models = [
        gguf('a', '70b', { ...asked, max_sequences: 1, workload }),
        gguf('b', '70b', { ...asked, max_sequences: 1 }),
      ];
      return place(ask(models, [gpus('L4', 24, 1, { ...native, count: 1 })])).launches[0]!;
    };
    const [often, seldom] = [planned(10), planned(1e-3)];
    const memory = ({ units }: typeof often) => units.map((unit) => unit.memory!.resident_bytes);
    expect(memory(often)).not.toEqual(memory(seldom));
    const alike = (launch: typeof often) =>
      withoutResident(launch).units.map(({ unit, memory: taken }) => [unit, taken]);
    expect(alike(often)).toEqual(alike(seldom));
  });
});

describe('a link that was measured', () => {
  it('is what steps are predicted by', () => {
    const measured = 4e9;
    const model = gguf('m', '70b', asked);
    const seen = [
      {
        node_kind: small.node_kind,
        engine: 'native' as const,
        tensor: 1,
        pipeline: 1,
        link_bytes_per_s: measured,
      },
    ];
    const [planned] = place(ask([{ ...model, seen }], [small])).models;
    expect(planned!.reasons.join()).toMatch(/\(PCIe 3\.0 x16, 4 GB\/s measured\)/);
    const left_bytes = model.weight_bytes - (planned!.resident_bytes ?? 0) / 1.05;
    expect(planned!.groups[0]!.predicted!.tpot_ms).toBeGreaterThan((1000 * left_bytes) / measured);
  });
});

describe('several of them on one device', () => {
  const names = ['a', 'b', 'c', 'd'];
  const models = names.map((name) => gguf(name, '70b', { ...asked, max_sequences: 1 }));
  it('have one arena, counted once', () => {
    const question = ask(models, [gpus('L4', 6, 1, { ...native, count: 1 })]);
    const placement = place(question);
    expect(placement.unplaced).toEqual([]);
    const units = placement.launches.flatMap((launch) => launch.units);
    const apart = units.reduce((sum, { memory }) => sum + memory!.device_bytes, 0);
    const arena_bytes = units[0]!.memory!.arena_bytes!;
    expect(apart).toBeGreaterThan(6 * gib);
    expect(apart - 3 * arena_bytes).toBeLessThan(6 * gib);
    expect(checkPlacement(question, placement)).toEqual([]);
  });

  it('have one arena where it is in host memory, too, and a warning where their files are too many', () => {
    const four = (memory_gib: number) => {
      const cpu = cpus('Xeon-8480', 1, ['avx512f'], { memory_bytes: Math.round(memory_gib * gib) });
      const files = models.map((model, index) => ({ ...model, model_path: `/models/${index}.gguf` }));
      const question = ask(files, [{ ...cpu, nodes_total: 1 }]);
      return { question, placement: place(question) };
    };
    const one = four(300).placement.launches[0]!.units[0]!.memory!;
    const own_gib = (one.device_bytes - one.arena_bytes!) / gib;
    const arena_gib = one.arena_bytes! / gib;
    const overhead_gib = ask([], []).settings.host_overhead_bytes / gib;
    const least_gib = overhead_gib + 4 * own_gib + arena_gib;
    const { question, placement } = four(least_gib + 0.1);
    expect(placement.unplaced).toEqual([]);
    expect(checkPlacement(question, placement)).toEqual([]);
    // None of the four files has room beside them.
    expect(placement.warnings.join()).toMatch(/a, b, c, d on .*host memory lacks 14\d\.\d GiB/);
    expect(four(300).placement.warnings.join()).not.toMatch(/host memory/);
    expect(four(least_gib - 0.1).placement.unplaced).not.toEqual([]);
  });

  it('are not believed without an arena', () => {
    const question = ask(models, [gpus('L4', 24, 1, { ...native, count: 1 })]);
    const placement = place(question);
    delete placement.launches[0]!.units[0]!.memory!.arena_bytes;
    expect(checkPlacement(question, placement).join()).toMatch(/has no arena for its weights/);
  });
});

describe('the arena', () => {
  it('lets parts come while the one before them computes, but for one of a round at most', () => {
    for (const n_layer of [2, 3, 5, 16, 31, 80]) {
      const model = {
        n_layer,
        weight_bytes: n_layer * 1e8 + 2e8,
        weight_bytes_of: {
          embedding: 1e8,
          layers: Array.from({ length: n_layer }, () => 1e8),
          output: 1e8,
        },
      };
      const parts = streamedParts_bytes(model);
      expect(parts.at(-1)).toBe(2e8);
      const arena_bytes = arenaFor_bytes(model);
      const ring = planRing(parts, arena_bytes, 4096)!;
      expect(ring.filter(({ distance }) => distance === 1).length, `${n_layer} layers`).toBeLessThan(2);
      expect(arena_bytes).toBeLessThan(6.4e8);
    }
  });

  it('holds a head that is the embedding', () => {
    const weight_bytes_of = { embedding: 5e8, layers: [1e8, 1e8], output: 1e4 };
    expect(streamedParts_bytes({ n_layer: 2, weight_bytes: 7e8, weight_bytes_of })).toEqual([1e8, 6e8 + 1e4]);
  });
});

describe('model.yaml', () => {
  const refusal = (more: object): string => {
    const { error } = modelSchema.safeParse({ name: 'm', source: '/m', weights: 'streamed', ...more });
    return (error?.issues ?? []).map(({ path, message }) => `${path.join('.')}: ${message}`).join();
  };
  it('has weights lie on the device unless it says otherwise', () => {
    expect(modelSchema.parse({ name: 'm', source: '/m' }).weights).toBe('resident');
    expect(refusal({})).toBe('');
    expect(refusal({ parallel: { pipeline: 1, tensor: 1 } })).toBe('');
    expect(refusal({ weights: 'elsewhere' })).toMatch(/^weights: /);
  });

  it.each([
    { parallel: { pipeline: 2 } },
    { parallel: { tensor: 2 } },
    { parallel: { pipeline: { stages_min: 2, stages_max: 4 } } },
  ])('streams none that is split: %j', (more) => {
    expect(refusal(more)).toMatch(/^weights: .*one device/);
  });

  it('takes nothing that counts loads where there are none', () => {
    expect(refusal({ latency_sensitivity: 2 })).toMatch(/^latency_sensitivity: it would have no effect/);
  });
});
