/** `hpcserve plan` typed by hand, from a site config alone: what people get wrong, and what they then read. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { CliContext } from '../../../cli/context.ts';
import { printPlan } from '../../../cli/format/plan-text.ts';
import { wrap } from '../../../cli/format/wrap.ts';
import type { Plan } from '../../../spec/plan.ts';
import { hollowLlama } from '../hollow-model.ts';
import { type Home, type Outcome, temporaryHome } from '../support.ts';

let home: Home;
beforeAll(() => {
  home = temporaryHome();
  hollowLlama(join(home.folder, '8b'), { hidden: 4096, ff: 14_336, layers: 32, heads: 32, kv: 8 });
  hollowLlama(join(home.folder, '70b'), { hidden: 8192, ff: 28_672, layers: 80, heads: 64, kv: 8 });
  site('lab');
});
afterAll(() => home.dispose());

const gpuKind = (name: string, model: string, memory_gb: number, more: object = {}): object => ({
  name,
  count: 4,
  partition: 'gpu',
  gres_type: name,
  cpus: 64,
  memory_gb: 512,
  devices: [{ kind: 'gpu', model, count: 4, memory_gb }],
  slurm: { time_limit: '12:00:00' },
  max_time: '24:00:00',
  ...more,
});
const labKinds = [
  gpuKind('a100', 'A100-80GB', 80),
  gpuKind('gh200', 'GH200', 96),
  gpuKind('scav', 'A100-40GB', 40, { partition: 'scavenge', tier: 'scavenger' }),
];

function site(name: string, node_kinds: readonly object[] = labKinds): void {
  const content = { name, kind: 'slurm', runtime: { engines: { vllm: true } }, node_kinds };
  writeFileSync(join(home.folder, `${name}.yaml`), JSON.stringify(content));
}

/** Plans these models on a site, with Slurm left alone. */
function plan(
  models: object | object[],
  options: string[] = [],
  at = 'lab',
  top: object = {},
): Promise<Outcome> {
  const list = [models].flat().map((model, index) => ({ name: `m${index}`, source: './8b', ...model }));
  writeFileSync(join(home.folder, 'model.yaml'), JSON.stringify({ name: 'demo', models: list, ...top }));
  return home.run(['plan', 'model.yaml', '--site', `./${at}.yaml`, '--offline', ...options]);
}
const load = { rate_per_s: 40, input_tokens: 1024, output_tokens: 256 };

describe('what cannot be meant', () => {
  it.each([
    [
      'an objective nobody knows',
      ['--objective', 'fastest'],
      2,
      /fastest[\s\S]*slo, latency, gpu-hours, energy/,
    ],
    ['a deadline that is no time', ['--deadline', 'soon'], 2, /soon.*a time such as/],
    ['a deadline before now', ['--deadline', '-3'], 2, /-3/],
  ])('%s', async (_, options, code, words) => {
    const refused = await plan({}, options);
    expect(refused).toMatchObject({ code, stdout: '' });
    expect(refused.stderr).toMatch(words);
  });

  it.each([
    [
      'a negative rate',
      { workload: { ...load, rate_per_s: -4 } },
      /model\.yaml:1:\d+: models\.0\.workload\.rate_per_s was read as -4/,
    ],
    [
      'a rate of nothing',
      { workload: { ...load, rate_per_s: 0 } },
      /rate_per_s was read as 0; allowed: more than 0/,
    ],
    ['prompts of no token', { workload: { ...load, input_tokens: 0 } }, /input_tokens was read as 0/],
    ['part of a replica', { replicas: 1.5 }, /replicas/],
    [
      'more stable replicas than there are',
      { replicas: 2, min_stable_replicas: 3 },
      /m0 asks for 3 stable replicas, and for 2 in all/,
    ],
    [
      'stable replicas on scavenger nodes',
      { replicas: 2, min_stable_replicas: 1, tier: 'scavenger' },
      /tier scavenger/,
    ],
  ])('%s', async (_, model, words) => {
    const refused = await plan(model);
    expect(refused).toMatchObject({ code: 3, stdout: '' });
    expect(refused.stderr).toMatch(words);
  });
});

describe('what cannot be done says why, in its first line of reasons', () => {
  const reasons = (outcome: Outcome): string[] =>
    outcome.stderr.split('\n').filter((line) => line.includes('because: '));

  it('a model larger than everything names the largest group of devices', async () => {
    site('small', [gpuKind('rtx', 'RTX-3090', 24)]);
    const outcome = await plan({ source: './70b' }, [], 'small');
    expect(outcome.code).toBe(5);
    expect(reasons(outcome)[0]).toMatch(
      /m0 in BF16 needs 131\.4 GiB for its weights alone; the largest group of devices here is 4 × 22\.4 GiB \(RTX-3090\)/,
    );
  });

  it('two models that do not fit together are named, with the sums', async () => {
    const half = { source: './70b', parallel: { tensor: 4 }, devices: { node_kinds: ['gh200'] } };
    const outcome = await plan([
      { ...half, replicas: 3 },
      { ...half, replicas: 2 },
    ]);
    expect(outcome.code).toBe(5);
    expect(reasons(outcome)[0]).toMatch(
      /m0 \(3 × 4\) and m1 \(2 × 4\) need at least 20 devices of their own; the nodes they can run on have 16 \(gh200: 4 × 4\)/,
    );
    expect(outcome.stdout).toMatch(/Not all replicas find a place\. These would:/);
  });

  it('a tier that no node kind it asks for has', async () => {
    const outcome = await plan({ tier: 'scavenger', devices: { node_kinds: ['gh200', 'a100'] } });
    expect(outcome.code).toBe(5);
    expect(outcome.stderr).toContain('because: a100, gh200: tier asks for scavenger; these nodes are stable');
  });

  it('stable replicas where only scavengers are', async () => {
    const outcome = await plan({ replicas: 2, min_stable_replicas: 1, devices: { node_kinds: ['scav'] } });
    expect(outcome.code, outcome.stderr).toBe(5);
    expect(outcome.stderr).not.toContain('E_INTERNAL');
    expect(outcome.stderr).toMatch(/replica\(s\) of m0 found no place/);
  });

  it('a wall time that no partition allows', async () => {
    const outcome = await plan({}, [], 'lab', { slurm: { time_limit: '2-00:00:00' } });
    expect(outcome.code).toBe(5);
    expect(outcome.stderr).toContain(
      'a100, gh200, scav: a wall time of 2-00:00:00 is asked for by --time, or else slurm.time_limit of model.yaml; at most 1-00:00:00 is allowed',
    );
  });

  it('a wall time in words, with the place that has it', async () => {
    const inFile = await plan({}, [], 'lab', { slurm: { time_limit: '4 hours' } });
    expect(inFile.code, inFile.stderr).toBe(3);
    expect(inFile.stderr).toMatch(/model\.yaml:1:\d+[\s\S]*time_limit[\s\S]*D-HH:MM:SS/);
    const flagged = await plan({}, ['--time', '4 hours'], 'lab', { slurm: { time_limit: '01:00:00' } });
    expect(flagged.code, flagged.stderr).toBe(2);
    expect(flagged.stderr).toContain('--time "4 hours" cannot be');
  });

  it('a site without nodes', async () => {
    site('none', []);
    const outcome = await plan({}, [], 'none');
    expect(outcome.code).toBe(5);
    expect(outcome.stderr).toContain('node_kinds of the site config of none is empty');
  });

  it('a thousand replicas, with how many there is room for', async () => {
    const outcome = await plan({ replicas: 1000 });
    expect(outcome.code).toBe(5);
    expect(reasons(outcome)[0]).toMatch(/at least 1000 devices of their own; .* have 48/);
    expect(outcome.stderr).toContain('952 replica(s) of m0 found no place');
    // Like jobs are one row: three kinds, three rows under the titles.
    expect(outcome.stdout.match(/^\d+-\d+ .*/gm)).toHaveLength(3);
  });
});

describe('what is large, unknown or late', () => {
  it('a thousand replicas on ten thousand nodes', async () => {
    site('huge', [gpuKind('gh200', 'GH200', 96, { count: 10_000 }), ...labKinds.slice(0, 1)]);
    const started_ms = performance.now();
    const outcome = await plan({ replicas: 1000 }, ['--json'], 'huge');
    expect(outcome.code, outcome.stderr).toBe(0);
    expect(performance.now() - started_ms).toBeLessThan(15_000);
    const units = (JSON.parse(outcome.stdout) as Plan).launches.flatMap((launch) => launch.units);
    expect(new Set(units.map(({ unit }) => unit)).size).toBe(1000);
  });

  it('a GPU nobody knows is planned with, and the nearest name is told even where it is not chosen', async () => {
    site('unknown', [gpuKind('gh200', 'GH2000', 96), ...labKinds.slice(0, 1)]);
    const outcome = await plan({ workload: load, replicas: 'auto' }, [], 'unknown');
    expect(outcome.code, outcome.stderr).toBe(0);
    expect(
      outcome.stderr.match(/warning: gh200: GPU "GH2000" is not in the catalog; nearest: GH200/g),
    ).toHaveLength(1);
  });

  it('replicas: auto without a workload is one, for a workload that is said to be assumed', async () => {
    const outcome = await plan({ replicas: 'auto' });
    expect(outcome.code, outcome.stderr).toBe(0);
    expect(outcome.stdout).toMatch(/^1 .* m0-0$/m);
    expect(outcome.stdout).toMatch(
      /for 1 request\/s of 512 tokens in and 128 out \(assumed: model\.yaml has no workload\)/,
    );
  });

  it.each(['0', '1ms'])('a search of %s has a plan, and its distance from the best', async (deadline) => {
    const models = Array.from({ length: 24 }, (_, index) => ({
      replicas: 'auto',
      workload: { ...load, rate_per_s: 1 + ((index * 7) % 5) },
    }));
    site(
      'many',
      labKinds.map((kind) => ({ ...kind, count: 12 })),
    );
    const outcome = await plan(models, ['--deadline', deadline, '--json'], 'many');
    expect(outcome.code, outcome.stderr).toBe(0);
    const { search, unplaced } = JSON.parse(outcome.stdout) as Plan;
    expect(unplaced).toEqual([]);
    expect(search.status).not.toBe('first_fit');
    expect(search.gap).toBeGreaterThanOrEqual(0);
    expect(search.gap).toBeLessThan(1);
  });

  it('a plan file that cannot be written, or is none', async () => {
    const unwritable = await plan({}, ['--out', 'absent/plan.json']);
    expect(unwritable.code).toBe(3);
    expect(unwritable.stderr).toMatch(/\[E_PLAN_FILE\]/);
    writeFileSync(join(home.folder, 'plan.json'), '{"format": 1, "launches": [null]}');
    const garbage = await home.run(['deploy', 'model.yaml', '--plan', 'plan.json', '--site', './lab.yaml']);
    expect(garbage.code).toBe(3);
    expect(garbage.stderr).toMatch(/plan\.json is no plan to carry out \[E_PLAN_FILE\]/);
  });
});

describe('a plan as text', () => {
  /** As a terminal of so many columns shows it. */
  function shown(
    plan: Plan,
    columns: number,
    more: Partial<CliContext> = {},
  ): { out: string[]; notes: string[] } {
    const out: string[] = [];
    const notes: string[] = [];
    const context = {
      columns,
      tty: { stdin: true, stdout: true, stderr: true },
      colour: false,
      out: (text: string) => out.push(...text.split('\n')),
      note: (text: string) => notes.push(...text.split('\n')),
      ...more,
    } as unknown as CliContext;
    printPlan(context, plan, { explain: true });
    return { out, notes };
  }
  let made: Plan;
  beforeAll(async () => {
    const models = [
      { workload: load, replicas: 'auto', slo: { ttft_ms: 1000, tpot_ms: 50 } },
      { source: './70b', workload: { ...load, rate_per_s: 5 }, replicas: 'auto' },
    ];
    const outcome = await plan(models, ['--out', 'plan.json']);
    expect(outcome.code, outcome.stderr).toBe(0);
    made = JSON.parse(readFileSync(join(home.folder, 'plan.json'), 'utf8'));
  });

  it.each([120, 100, 80, 60])('keeps to %i columns but for the table of jobs', (columns) => {
    const { out, notes } = shown(made, columns);
    const jobs = out.indexOf('');
    for (const line of [...out.slice(jobs), ...notes]) expect([...line].length).toBeLessThanOrEqual(columns);
    const text = out.join(' ').replaceAll(/ +/g, ' ');
    // Nothing is lost where it is narrow.
    for (const { groups } of made.models)
      for (const { predicted } of groups) {
        expect(text).toContain(`${Math.round(predicted!.power_w)} W`);
        expect(text).toContain(`${Math.round(100 * predicted!.utilization)} %`);
      }
    expect(text).toContain('SLO: TTFT 1 s, TPOT 50 ms');
    expect(text).toContain('SLO: TTFT 2 s, TPOT 100 ms (the default)');
  });

  it('is a table where there is room, and folds nothing where nobody looks', () => {
    expect(shown(made, 120).out.some((line) => /^ +MODEL +REPLICAS +TTFT +TPOT/.test(line))).toBe(true);
    expect(shown(made, 60).out.some((line) => /MODEL +REPLICAS/.test(line))).toBe(false);
    const piped = shown(made, 60, { tty: { stdin: false, stdout: false, stderr: false } });
    expect(piped.out.some((line) => /MODEL +REPLICAS/.test(line))).toBe(true);
  });

  it('has colour only where it is wanted', () => {
    expect(shown(made, 100).out.join('')).not.toContain('\u001b[');
    expect(shown(made, 100, { colour: true }).out.join('')).toContain('\u001b[1m');
  });

  it('leaves numbers with their units where it folds', () => {
    expect(wrap('a TTFT of 63.1 ms, a load of 69 % and 1432 W', 14, 0)).toEqual([
      'a TTFT of',
      '  63.1 ms, a',
      '  load of 69 %',
      '  and 1432 W',
    ]);
    expect(wrap('unbreakableunbreakable', 10)).toEqual(['unbreakableunbreakable']);
    expect(wrap('', 10)).toEqual(['']);
  });
});

describe('--mig', () => {
  const small = { source: './small', context_tokens: 2048, engine: 'vllm' };
  const few = { workload: { rate_per_s: 0.05, input_tokens: 100, output_tokens: 50 } };
  const models = [0, 1, 2].map(() => ({ ...small, ...few }));
  beforeAll(() => {
    hollowLlama(join(home.folder, 'small'), { hidden: 2048, ff: 8192, layers: 16, heads: 32, kv: 8 });
    site('divisible', [gpuKind('a100', 'A100-80GB', 80)]);
  });

  it('says how GPUs could be divided, by how much, and that nothing was', async () => {
    const { code, stdout, stderr } = await plan(models, ['--mig'], 'divisible');
    expect(code, stderr).toBe(0);
    const text = stdout.replaceAll(/\s+/g, ' ');
    expect(text).toContain(
      'MIG: 1 GPU of a100 as 7× 1g.10gb for m0, m1, m2. That is 1 GPU by gpu-hours; 3 undivided MIG: nothing was changed',
    );
    const json = JSON.parse((await plan(models, ['--mig', '--json'], 'divisible')).stdout);
    expect(json.mig.sliced).toMatchObject([{ node_kind: 'a100', profile: '1g.10gb', gpus: 1, slices: 3 }]);
    expect(json.launches.every(({ node_kind }: { node_kind: string }) => node_kind === 'a100')).toBe(true);
  });

  it('says where it would be of no use, and is of one site', async () => {
    site('whole', [gpuKind('v100', 'V100-SXM2-32GB', 32)]);
    expect((await plan(models, ['--mig'], 'whole')).stdout).toContain('MIG: no GPU is known to be divisible');
    const { code, stderr } = await home.run(['plan', 'model.yaml', '--mig', '--sites', 'a,b']);
    expect(code).toBe(2);
    expect(stderr).toContain('--mig looks at the GPUs of one site');
  });
});
