import { describe, expect, it } from 'vitest';
import { HpcserveError } from '../../spec/errors/error.ts';
import { deploymentSchema } from '../../spec/model-yaml.ts';
import { parseYaml, readYamlFile } from '../../spec/yaml-document.ts';

const good = `name: demo
models:
  - name: tiny
    source: ./tiny.gguf
    slo: { ttft_ms: 500 }
slurm:
  account: g123
`;

function refusal(text: string): HpcserveError {
  try {
    parseYaml(text, 'model.yaml', deploymentSchema);
  } catch (error) {
    if (error instanceof HpcserveError) return error;
    throw error;
  }
  throw new Error('it was accepted');
}

describe('model.yaml', () => {
  it('fills in defaults and knows where a value stands', () => {
    const file = parseYaml(good, 'model.yaml', deploymentSchema);
    expect(file.value.models[0]).toMatchObject({
      engine: 'auto',
      replicas: 1,
      parallel: { tensor: 'auto', pipeline: 1 },
    });
    expect(file.provenance('slurm.account')).toBe('model.yaml:7:3');
    expect(file.provenance('models.0.source')).toBe('model.yaml:4:5');
    expect(file.provenance('slurm.qos')).toBeUndefined();
  });

  it('names an unknown key with its position and the nearest known one', () => {
    const error = refusal(good.replace('source:', 'sorce:'));
    expect(error.code).toBe('E_CONFIG_YAML');
    expect(error.because.join('\n')).toContain(
      'model.yaml:4:5: unknown key "models.0.sorce"; did you mean "source"?',
    );
    expect(error.because.join('\n')).toContain('"models.0.source" is missing; allowed: a text');
    expect(error.try[0]).toBe('Write "source" instead of "sorce".');
  });

  it('says what was read and what is allowed', () => {
    const error = refusal(
      good.replace('source: ./tiny.gguf', 'source: ./tiny.gguf\n    engine: vlm\n    replicas: -1'),
    );
    expect(error.because[0]).toMatch(
      /^model\.yaml:5:13: models\.0\.engine was read as "vlm"; allowed: "auto", .*did you mean "vllm"\?$/,
    );
    expect(error.because[1]).toBe('model.yaml:6:15: models.0.replicas was read as -1; allowed: at least 0');
  });

  it('advises quotes where a text looks like a number, and knows numbers that JSON does not', () => {
    const text = good
      .replace(
        'source: ./tiny.gguf',
        'source: ./tiny.gguf\n    environment: { OMP_NUM_THREADS: 0o17, DEBUG: true }',
      )
      .replace('g123', '4711\n  partition: 1e3\n  constraint: { a: 1 }');
    const { because, try: advice } = refusal(text);
    const place = 'models.0.environment';
    expect(because).toEqual([
      `model.yaml:5:37: ${place}.OMP_NUM_THREADS was read as 15; allowed: a text: "0o17", with the quotes`,
      `model.yaml:5:50: ${place}.DEBUG was read as true; allowed: a text: "true", with the quotes`,
      'model.yaml:9:14: slurm.partition was read as 1000; allowed: a text, or a list: "1e3", with the quotes',
      'model.yaml:8:12: slurm.account was read as 4711; allowed: a text: "4711", with the quotes',
      'model.yaml:10:15: slurm.constraint was read as {"a":1}; allowed: a text',
    ]);
    expect(advice).toEqual(['Put quotes around it: "0o17".']);
    const endless = text.replace('4711', '.inf').replace('1e3', '.nan');
    expect(refusal(endless).because.slice(2, 4)).toEqual([
      'model.yaml:9:14: slurm.partition was read as NaN; allowed: a text, or a list: ".nan", with the quotes',
      'model.yaml:8:12: slurm.account was read as Infinity; allowed: a text: ".inf", with the quotes',
    ]);
  });

  it('takes minutes of wall time as YAML has them, without quotes', () => {
    const file = parseYaml(`${good}  time_limit: 90\n`, 'model.yaml', deploymentSchema);
    expect(file.value.slurm.time_limit).toBe('90');
    expect(
      parseYaml(`${good}  time_limit: 1:30:00\n`, 'model.yaml', deploymentSchema).value.slurm,
    ).toMatchObject({
      time_limit: '1:30:00',
    });
    expect(refusal(`${good}  time_limit: 0\n`).because[0]).toMatch(
      /time_limit was read as 0; allowed: at least 1/,
    );
  });

  it('merges mappings, and finds what they bring where it stands', () => {
    const text = `name: demo
models:
  - &one
    name: one
    source: ./one.gguf
    replicas: 2
    slo: { ttft_ms: 500 }
  - <<: *one
    name: two
  - name: three
    <<: [{ replicas: 3 }, *one]
`;
    const file = parseYaml(text, 'model.yaml', deploymentSchema);
    expect(file.value.models).toMatchObject([
      { name: 'one', replicas: 2, source: './one.gguf' },
      { name: 'two', replicas: 2, source: './one.gguf', slo: { ttft_ms: 500 } },
      { name: 'three', replicas: 3, source: './one.gguf' },
    ]);
    expect(
      ['1.name', '1.source', '2.replicas', '2.slo.ttft_ms'].map((key) => file.provenance(`models.${key}`)),
    ).toEqual(['model.yaml:9:5', 'model.yaml:5:5', 'model.yaml:11:12', 'model.yaml:7:12']);
    expect(refusal(text.replace('replicas: 3', 'replicaz: -3')).because[0]).toMatch(
      /^model\.yaml:11:12: unknown key "models\.2\.replicaz"; did you mean "replicas"\?/,
    );
    expect(refusal(text.replace('replicas: 3', 'replicas: -3')).because).toEqual([
      'model.yaml:11:22: models.2.replicas was read as -3; allowed: at least 0',
    ]);
    expect(refusal(text.replace('<<: *one', '<<: one')).because.join()).toMatch(/[Mm]erge/);
    expect(refusal(text.replace('replicas: 2', '<<: *one')).code).toBe('E_CONFIG_YAML');
  });

  it('finds what is wrong behind an alias where it stands', () => {
    const text = `name: demo
models:
  - &one
    name: one
    source: ./one.gguf
    slo: { ttft_ms: fast }
  - *one
  - name: two
    source: ./two.gguf
    slo: *absent
`;
    const because = refusal(text.replace('*absent', '{ tpot_ms: 5 }')).because;
    expect(because).toEqual([
      'model.yaml:6:21: models.0.slo.ttft_ms was read as "fast"; allowed: a number',
      'model.yaml:6:21: models.1.slo.ttft_ms was read as "fast"; allowed: a number',
    ]);
    const sized = text
      .replace('fast', '500')
      .replace('name: one', 'name: &text one')
      .replace('*absent', '*text');
    expect(refusal(sized).because[0]).toMatch(
      /^model\.yaml:4:\d+: models\.2\.slo was read as "one"; allowed: a mapping/,
    );
    const file = parseYaml(
      text.replace('fast', '500').replace('*absent', '{}'),
      'model.yaml',
      deploymentSchema,
    );
    expect(file.provenance('models.1.source')).toBe('model.yaml:5:5');
  });

  it('says what the name of a key may be', () => {
    const error = refusal(good.replace('slo:', 'environment: { 2FOO: x }\n    slo:'));
    expect(error.because).toEqual([
      'model.yaml:5:20: the key "2FOO" of models.0.environment cannot be; allowed: a POSIX environment name',
    ]);
  });

  it('points into the file where YAML itself is broken', () => {
    expect(refusal('name: demo\nmodels:\n\t- name: x\n').because[0]).toMatch(/^model\.yaml:3:1: /);
    expect(refusal('name: a\nname: b\nmodels: []\n').because[0]).toMatch(/^model\.yaml:2:1: .*unique/);
    expect(refusal(`${good}---\n${good}`).because[0]).toBe(
      'model.yaml:8:1: a second document begins here, and a file holds one',
    );
  });

  it('refuses names that could reach a shell, a path or a metric', () => {
    for (const name of ["a'; touch /tmp/x", 'a\nb', '../up', 'ü', '']) {
      expect(refusal(`name: ${JSON.stringify(name)}\nmodels: [{name: m, source: s}]`).code).toBe(
        'E_CONFIG_YAML',
      );
    }
  });

  it('accepts no empty or endless document', () => {
    expect(refusal('').because[0]).toContain('allowed: a mapping');
    const bomb =
      'a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nname: [*c,*c,*c,*c,*c]\n';
    expect(() => parseYaml(bomb, 'model.yaml', deploymentSchema)).toThrow(HpcserveError);
  });

  it('says so where the file is missing or a model file was named instead', () => {
    expect(() => readYamlFile('/nowhere/model.yaml', deploymentSchema)).toThrow(
      '/nowhere/model.yaml cannot be read',
    );
  });
});
