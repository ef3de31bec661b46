/** One question of several sites, and the shares of its answer: as pure functions, on small instances. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { checkPlacement } from '../../../solver/placement/check.ts';
import { place } from '../../../solver/placement/placement.ts';
import { kindAt, kindOfSite, kindsAskedAt } from '../../../solver/sites/kind-names.ts';
import { mergeQuestions } from '../../../solver/sites/merge-questions.ts';
import { placementOfSite, siteShares } from '../../../solver/sites/split-placement.ts';
import type { HpcserveError } from '../../../spec/errors/error.ts';
import { modelSchema } from '../../../spec/model-yaml.ts';
import {
  defaultPlacementSettings,
  type NodeKindOffer,
  type Placement,
  type PlacementModel,
  type PlacementQuestion,
} from '../../../spec/plan.ts';
import { siteQuestionSchema } from '../../../spec/site-question.ts';
import type { SiteShare } from '../../../spec/site-share.ts';
import { ask, gguf, gpus, llama, planOf, where } from '../placement/support.ts';

function site(name: string, models: PlacementModel[], kinds: NodeKindOffer[], more = {}): PlacementQuestion {
  return ask(models, kinds, { site: name, ...more });
}

/** The question that a site answers for its share, as `deploy` there asks it. */
function questionOfShare(question: PlacementQuestion, share: SiteShare): PlacementQuestion {
  const kinds = question.node_kinds.map(({ node_kind }) => node_kind);
  return {
    ...question,
    models: question.models.flatMap((model) => {
      const own = share.models.find(({ name }) => name === model.spec.name);
      if (own === undefined) return [];
      const { replicas, min_stable_replicas } = own;
      const node_kinds = kindsAskedAt(question.site, model.spec, kinds);
      const devices = { ...model.spec.devices, node_kinds };
      return [{ ...model, spec: { ...model.spec, replicas, min_stable_replicas, devices } }];
    }),
  };
}

function caught(act: () => unknown): HpcserveError {
  try {
    act();
  } catch (error) {
    return error as HpcserveError;
  }
  throw new Error('nothing was thrown');
}

describe('names of node kinds', () => {
  it('lead back to site and kind, and to no other site', () => {
    const name = fc.stringMatching(/^[a-z0-9][a-z0-9-]{0,8}$/);
    fc.assert(
      fc.property(name, name, name, (one, other, kind) => {
        expect(kindOfSite(one, kindAt(one, kind))).toBe(kind);
        if (other !== one) expect(kindOfSite(other, kindAt(one, kind))).toBeUndefined();
      }),
    );
  });

  it('are not those of a site whose name begins alike', () => {
    expect(kindOfSite('todi', 'todi-2/a100')).toBeUndefined();
    expect(kindOfSite('todi-2', 'todi/a100')).toBeUndefined();
  });

  it('are asked for of every site, or of one', () => {
    const { spec } = llama('m', '8b', { devices: { node_kinds: ['gh200', 'todi/a100'] } });
    expect(kindsAskedAt('daint', spec, ['gh200', 'a100'])).toEqual(['gh200']);
    expect(kindsAskedAt('todi', spec, ['a100', 'gh200'])).toEqual(['gh200', 'a100']);
    expect(kindsAskedAt('other', spec, ['h100'])).toEqual([]);
  });
});

describe('the questions of several sites as one', () => {
  it('have the kinds of all, with what each site says of its own', () => {
    const models = [llama('m', '8b', { replicas: 2 })];
    const pool = { id: 'a100+spare', nodes: 2 };
    const penalties = { ...defaultPlacementSettings.penalties, waiting: 9 };
    const merged = mergeQuestions([
      site('daint', models, [gpus('A100', 80, 2, { pool })], { time_limit_s: 3600, partitions: ['debug'] }),
      site('todi', models, [gpus('A100', 80, 4, { time_limit_default_s: 60 })], {
        settings: { ...defaultPlacementSettings, penalties },
        running: [{ model: 'm', node_kind: 'a100', replicas: 1, device_count: 1 }],
      }),
    ]);
    expect(merged.site).toBe('daint, todi');
    expect(merged.node_kinds).toMatchObject([
      {
        node_kind: 'daint/a100',
        pool: { id: 'daint/a100+spare' },
        partitions: ['debug'],
        time_limit_default_s: 3600,
        penalties: defaultPlacementSettings.penalties,
      },
      { node_kind: 'todi/a100', partitions: ['gpu'], time_limit_default_s: 60, penalties: { waiting: 9 } },
    ]);
    expect(merged.time_limit_s).toBeUndefined();
    expect(merged.partitions).toBeUndefined();
    expect(merged.running).toMatchObject([{ node_kind: 'todi/a100' }]);
  });

  it('travel as JSON, and are the same there', () => {
    const question = site(
      'daint',
      [
        llama('m', '8b', {
          replicas: 'auto',
          workload: { rate_per_s: 2, input_tokens: 9, output_tokens: 9 },
        }),
        gguf('n', '1b', { slo: { ttft_ms: 100 }, timeouts: { total_s: 5 } }),
      ],
      [
        gpus('A100', 80, 2, {
          pool: { id: 'x', nodes: 2 },
          free: [{ nodes: 1, devices: 2, cpus: 3 }],
          queue_wait_s: 12.5,
          interconnect: 'slingshot',
          engines: { vllm: { available: true, unverified: true }, tgi: { available: false, because: 'x' } },
        }),
        // Nobody counted them.
        gpus('GH200', 96, Number.MAX_SAFE_INTEGER, { tier: 'scavenger', whole_nodes: true }),
      ],
      { time_limit_s: 60, objective: 'energy' },
    );
    const answer = {
      format: 1,
      site: 'daint',
      hostname: 'login1',
      question,
      inputs_digest: 'x',
      warnings: [],
      mesh: {
        folder: '/m',
        key_digest: 'a'.repeat(64),
        gossip: true,
        bootstrap: ['a:1'],
        relay: [],
        port: 0,
      },
      deployed: { desired: 'serving', live_launches: 1 },
    };
    const travelled: unknown = JSON.parse(JSON.stringify(answer));
    expect(siteQuestionSchema.parse(travelled)).toEqual(travelled);
    expect(siteQuestionSchema.safeParse({ ...answer, surprise: 1 }).success).toBe(false);
  });

  it('are answered for one site as that site alone answers', () => {
    const kinds = [gpus('A100', 80, 1), gpus('GH200', 96, 2, { tier: 'scavenger' })];
    const models = [llama('m', '8b', { replicas: 3, min_stable_replicas: 1 }), llama('n', '13b')];
    const more = { time_limit_s: 7200, partitions: ['x'] };
    const alone = place(site('daint', models, kinds, more));
    const merged = place(mergeQuestions([site('daint', models, kinds, more)]));
    const renamed = merged.launches.map((launch) => ({
      ...launch,
      node_kind: kindOfSite('daint', launch.node_kind),
    }));
    expect(renamed).toEqual(alone.launches);
    expect(merged.search).toEqual(alone.search);
  });

  it('count what a site says against a kind for the kinds of that site alone', () => {
    const models = [llama('m', '8b')];
    const dear = {
      settings: {
        ...defaultPlacementSettings,
        penalties: { ...defaultPlacementSettings.penalties, preemptible: 5 },
      },
    };
    const kind = gpus('A100', 80, 1, { tier: 'scavenger' });
    const chosen = (first: object, second: object): Record<string, number> =>
      where(
        place(mergeQuestions([site('daint', models, [kind], first), site('todi', models, [kind], second)])),
        'm',
      );
    expect(chosen(dear, {})).toEqual({ 'todi/a100': 1 });
    expect(chosen({}, dear)).toEqual({ 'daint/a100': 1 });
  });

  it('add up what the gateways of each measured', () => {
    const measured = (rate_per_s: number, input_tokens: number): PlacementModel => ({
      ...llama('m', '8b'),
      workload: { rate_per_s, input_tokens, output_tokens: 100, source: 'measured' },
    });
    const kinds = [gpus('A100', 80, 1)];
    const { models } = mergeQuestions([
      site('a', [measured(3, 1000)], kinds),
      site('b', [llama('m', '8b')], kinds),
      site('c', [measured(1, 200)], kinds),
    ]);
    expect(models[0]!.workload).toEqual({
      rate_per_s: 4,
      input_tokens: 800,
      output_tokens: 100,
      source: 'measured',
    });
  });

  it('refuse a model that is another elsewhere, and say what differs', () => {
    const kinds = [gpus('A100', 80, 1)];
    const error = caught(() =>
      mergeQuestions([site('daint', [llama('m', '8b')], kinds), site('todi', [llama('m', '13b')], kinds)]),
    );
    expect(error.code).toBe('E_SITES_DIFFER');
    expect(error.message).toBe('m is not the same model on daint and todi');
    expect(error.because).toContain('weight_bytes: 16060000000 on daint, 26000000000 on todi');
    const quantized = caught(() =>
      mergeQuestions([site('daint', [gguf('m', '8b')], kinds), site('todi', [llama('m', '8b')], kinds)]),
    );
    expect(quantized.because.join()).toMatch(/format: "gguf" on daint, "huggingface" on todi/);
    // Where it lies, and what the file is called, is no difference.
    const elsewhere = { ...llama('m', '8b'), model_path: '/elsewhere/x' };
    elsewhere.summary = { ...elsewhere.summary!, name: 'x' };
    elsewhere.spec = { ...elsewhere.spec, source: '/elsewhere/x' };
    expect(() =>
      mergeQuestions([site('daint', [llama('m', '8b')], kinds), site('todi', [elsewhere], kinds)]),
    ).not.toThrow();
  });

  it('refuse kinds that no site has', () => {
    const models = [llama('m', '8b', { devices: { node_kinds: ['h100'] } })];
    const error = caught(() =>
      mergeQuestions([
        site('daint', models, [gpus('A100', 80, 1)]),
        site('todi', models, [gpus('GH200', 96, 1)]),
      ]),
    );
    expect(error.code).toBe('E_CONFIG_CONFLICT');
    expect(error.because).toEqual([
      'devices.node_kinds of m asks for it',
      'daint has a100',
      'todi has gh200',
    ]);
  });
});

/** Replicas without a place. */
function unserved(plan: Placement): number {
  return plan.unplaced.reduce((sum, { replicas }) => sum + replicas, 0);
}

const kindsOfSite = fc.uniqueArray(
  fc.record({
    device: fc.constantFrom('A100', 'GH200', 'V100'),
    nodes: fc.integer({ min: 1, max: 2 }),
    count: fc.integer({ min: 1, max: 2 }),
    tier: fc.constantFrom('stable' as const, 'scavenger' as const),
    idle: fc.integer({ min: 0, max: 2 }),
  }),
  { minLength: 1, maxLength: 2, selector: ({ device }) => device },
);
const instance = fc
  .record({
    sites: fc.array(kindsOfSite, { minLength: 2, maxLength: 3 }),
    models: fc.array(
      fc.record({
        size: fc.constantFrom('1b' as const, '8b' as const),
        replicas: fc.integer({ min: 1, max: 3 }),
        stable: fc.integer({ min: 0, max: 2 }),
        scavenger: fc.integer({ min: 0, max: 5 }),
        rate_per_s: fc.integer({ min: 1, max: 20 }),
      }),
      { minLength: 1, maxLength: 2 },
    ),
    objective: fc.constantFrom('slo' as const, 'gpu-hours' as const),
  })
  .map(({ sites, models, objective }) => {
    const asked = models.map(({ size, replicas, stable, scavenger, rate_per_s }, at) =>
      llama(`m${at}`, size, {
        replicas,
        min_stable_replicas: Math.min(stable, replicas),
        scavenger: { replicas: scavenger },
        workload: { rate_per_s, input_tokens: 512, output_tokens: 64 },
      }),
    );
    return sites.map((kinds, at) =>
      site(
        `s${at}`,
        asked,
        kinds.map(({ device, nodes, count, tier, idle }) =>
          gpus(device, device === 'V100' ? 32 : 80, nodes, {
            count,
            tier,
            nodes_idle: Math.min(idle, nodes),
          }),
        ),
        { objective },
      ),
    );
  });

describe('the shares of a plan over several sites', () => {
  it('of a model that follows demand are of every site that can run it, with what a replica costs there', () => {
    const models = [
      llama('m', '8b', { replicas: 1, scaling: { min: 0, max: 4 }, scavenger: { replicas: 3 } }),
      llama('n', '8b', { replicas: 1 }),
    ];
    const names = ['daint', 'todi', 'tiny'];
    const merged = mergeQuestions([
      site('daint', models, [gpus('A100', 80, 2), gpus('GH200', 96, 2, { tier: 'scavenger' })]),
      site('todi', models, [gpus('GH200', 96, 2, { nodes_idle: 0 })]),
      site('tiny', models, [gpus('V100', 4, 1, { count: 1 })]),
    ]);
    const plan = place(merged);
    const shares = siteShares(plan, names, merged);
    const of = (name: string) => shares.map(({ models: own }) => own.find((each) => each.name === name));
    const scaled = of('m');
    expect(scaled.map((each) => each?.replicas)).toEqual([1, 0, undefined]);
    expect(scaled[1]).toMatchObject({ min_stable_replicas: 0, scavenger_replicas: 0, request_share: 0.25 });
    expect(scaled[0]!.scavenger_replicas).toBe(3);
    expect(scaled[0]!.costs!.map(({ node_kind }) => node_kind)).toEqual(['a100', 'gh200']);
    const [[a100, preemptible], [stable]] = [scaled[0]!.costs!, scaled[1]!.costs!];
    // One unit for all: the same nodes cost more where they may be taken away, whoever waits for them now.
    expect(preemptible!.cost).toBeGreaterThan(stable!.cost);
    expect(a100!.cost).toBeLessThan(stable!.cost);
    expect(of('n').map((each) => each?.replicas)).toEqual([1, undefined, undefined]);
    expect(of('n')[0]!.costs).toBeUndefined();
  });

  it('add up to the whole, and each is a sound plan of its site', () => {
    let placed = 0;
    fc.assert(
      fc.property(instance, (questions) => {
        const merged = mergeQuestions(questions);
        const plan = place(merged);
        if (unserved(plan) > 0) return;
        placed++;
        const names = questions.map((question) => question.site);
        const shares = siteShares(plan, names, merged, 100);
        expect(shares.map((share) => share.site)).toEqual(names);
        for (const { spec } of merged.models) {
          const own = shares.flatMap(({ models }) => models.filter(({ name }) => name === spec.name));
          const sum = (of: (each: (typeof own)[number]) => number): number =>
            own.reduce((total, each) => total + of(each), 0);
          expect(sum(({ replicas }) => replicas)).toBe(spec.replicas);
          expect(sum((each) => each.min_stable_replicas)).toBe(spec.min_stable_replicas);
          expect(sum((each) => each.scavenger_replicas)).toBe(spec.scavenger.replicas);
          expect(sum(({ request_share }) => request_share)).toBeCloseTo(1, 3);
        }
        const gpu_hours = shares.reduce((sum, share) => sum + (share.gpu_hours ?? 0), 0);
        expect(gpu_hours).toBeCloseTo(plan.gpu_count > 0 ? 100 : 0, 6);
        const parts = shares.map((share, at) => {
          const question = questionOfShare(questions[at]!, share);
          const part = placementOfSite(plan, share, question);
          expect(checkPlacement(question, part)).toEqual([]);
          return part;
        });
        expect(parts.reduce((sum, part) => sum + part.gpu_count, 0)).toBe(plan.gpu_count);
        expect(parts.flatMap(({ launches }) => launches)).toHaveLength(plan.launches.length);
      }),
      { numRuns: 120, seed: 1 },
    );
    expect(placed).toBeGreaterThan(40);
  }, 120_000);

  it('have weights where the whole plan lets them lie', () => {
    const asked = { weights: 'auto', context_tokens: 2048, max_sequences: 1, latency_sensitivity: 3 };
    const small = gpus('T4', 16, 1, { engines: { native: { available: true } }, count: 1 });
    const question = site('daint', [gguf('m', '70b', asked)], [small]);
    const merged = mergeQuestions([question]);
    const plan = place(merged);
    const [share] = siteShares(plan, ['daint'], merged);
    const own = questionOfShare(question, share!);
    const part = placementOfSite(plan, share!, own);
    expect(part.launches[0]!.units[0]).toMatchObject({
      model: { weights: 'streamed', latency_sensitivity: 1 },
      memory: { arena_bytes: expect.any(Number) },
    });
    expect(checkPlacement(own, part)).toEqual([]);
  });

  it('have the site’s own names, paths and numbers', () => {
    const models = [llama('m', '8b', { replicas: 3, devices: { node_kinds: ['a100', 'todi/gh200'] } })];
    const there = models.map((model) => ({ ...model, model_path: '/there/m' }));
    const questions = [
      site('daint', models, [gpus('A100', 80, 2)]),
      site('todi', there, [gpus('GH200', 96, 1)]),
    ];
    const merged = mergeQuestions(questions);
    const plan = place(merged);
    expect(where(plan, 'm')).toEqual({ 'daint/a100': 2, 'todi/gh200': 1 });
    const shares = siteShares(plan, ['daint', 'todi'], merged);
    const part = placementOfSite(plan, shares[1]!, questionOfShare(questions[1]!, shares[1]!));
    expect(part.launches).toMatchObject([
      {
        node_kind: 'gh200',
        units: [
          { unit: 'm-0', model_path: '/there/m', model: { replicas: 1, devices: { node_kinds: ['gh200'] } } },
        ],
      },
    ]);
    expect(planOf(part, 'm')).toMatchObject({
      replicas: 1,
      groups: [{ node_kind: 'gh200', traffic_share: 1 }],
    });
    expect(planOf(part, 'm').reasons.join()).toContain('1 on gh200');
    expect(planOf(part, 'm').reasons.join()).toContain('2 on daint/a100');
  });
});

/**
 * What GPUs a plan takes. With one model at a rate that one replica carries, fewest GPUs is all that `gpu-hours` asks.
 */
function bestSplit(questions: readonly PlacementQuestion[], replicas: number): number {
  const [first, ...others] = questions as [PlacementQuestion, ...PlacementQuestion[]];
  let best = Number.POSITIVE_INFINITY;
  for (let own = 0; own <= replicas; own++) {
    const rest = others.length > 0 ? bestSplit(others, replicas - own) : own === replicas ? 0 : Infinity;
    if (rest === Number.POSITIVE_INFINITY) continue;
    const cost = own === 0 ? 0 : costAlone(first, own);
    best = Math.min(best, cost + rest);
  }
  return best;
}

function costAlone(question: PlacementQuestion, replicas: number): number {
  const models = question.models.map((model) => ({ ...model, spec: { ...model.spec, replicas } }));
  const plan = place({ ...question, models });
  return unserved(plan) > 0 ? Number.POSITIVE_INFINITY : plan.gpu_count;
}

describe('one search over all sites', () => {
  it('is no worse than the best of all ways to divide the replicas by hand', () => {
    let compared = 0;
    const gibs = fc.constantFrom(24, 40, 96);
    const nodes = fc.uniqueArray(fc.record({ gib: gibs, nodes: fc.integer({ min: 1, max: 2 }) }), {
      minLength: 1,
      maxLength: 2,
      selector: ({ gib }) => gib,
    });
    fc.assert(
      fc.property(
        fc.array(nodes, { minLength: 2, maxLength: 3 }),
        fc.integer({ min: 1, max: 4 }),
        (kinds, replicas) => {
          // 26 GB of weights: two devices of 24 GiB, one of the others.
          const spec = modelSchema.parse({ name: 'm', source: '/m', replicas, max_sequences: 1 });
          const model: PlacementModel = {
            ...llama('m', '13b', { workload: { rate_per_s: 0.01, input_tokens: 64, output_tokens: 8 } }),
            spec,
          };
          const questions = kinds.map((own, at) =>
            site(
              `s${at}`,
              [model],
              own.map(({ gib, nodes: count }) =>
                gpus('A100', gib, count, { count: 2, node_kind: `k${gib}` }),
              ),
              { objective: 'gpu-hours' },
            ),
          );
          const best = bestSplit(questions, replicas);
          const plan = place(mergeQuestions(questions));
          if (best === Number.POSITIVE_INFINITY) {
            expect(unserved(plan)).toBeGreaterThan(0);
            return;
          }
          compared++;
          expect(unserved(plan)).toBe(0);
          expect(plan.gpu_count).toBeLessThanOrEqual(best);
        },
      ),
      { numRuns: 40, seed: 3 },
    );
    expect(compared).toBeGreaterThan(15);
  }, 120_000);
});
