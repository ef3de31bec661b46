/** Every field of model.yaml against every engine: what is listed acts, what acts is listed, the rest is refused. */
import { describe, expect, it, test } from 'vitest';
import type { CommandLine } from '../../../agent/adapters/adapter.ts';
import { adapterOf } from '../../../agent/adapters/index.ts';
import { checkModels } from '../../../control/plan/check-models.ts';
import {
  type ActsOn,
  actsOn,
  type FieldName,
  fieldEffects,
  fieldsWithoutEffect,
  refuseWithoutEffect,
} from '../../../control/plan/engine-fields.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import {
  deploymentSchema,
  engineNames,
  type ModelSpec,
  modelSchema,
  stageBounds,
} from '../../../spec/model-yaml.ts';
import type { PlannedModel, ResolvedEngine } from '../../../spec/plan.ts';
import { unitOf } from '../../agent/support.ts';

const engines = engineNames.filter((name): name is ResolvedEngine => name !== 'auto');
const wrapped = engines.filter((name) => name !== 'native');

/** Another value than the default for each field that some engines alone act on, by engine where they differ. */
const samples: Partial<Record<FieldName, (engine: ResolvedEngine) => object>> = {
  engine_args: () => ({ engine_args: ['--seed', '7'] }),
  chat_template: () => ({ chat_template: '/t.jinja' }),
  precision: (engine) => ({ precision: engine === 'sglang' ? 'bf16' : 'f16' }),
  kv_type: () => ({ kv_type: 'q8_0' }),
  'parallel.tensor': () => ({ parallel: { tensor: 2 } }),
  'parallel.pipeline': () => ({ parallel: { pipeline: 2 } }),
  prefill_chunk_tokens: () => ({ prefill_chunk_tokens: 999 }),
  kv_tokens: () => ({ kv_tokens: 7777 }),
};
/** Fields of some engines that other rooms act on, not a command line. */
const elsewhere: ReadonlySet<FieldName> = new Set([
  // It is the command line.
  'command',
  // Placement chooses among them, and `precision` says what was chosen.
  'precision_choices',
  // Placement chooses them, by what is known of the model's answers.
  'parsers',
  // Of the native engine alone.
  'weights',
  'parallel.jobs',
  'parallel.lenders',
  'pools',
  'latency_sensitivity',
  'batch_invariant',
  'kernels',
]);

/** The words that a model's engine is started with. @throws where its adapter refuses */
function lineOf(engine: ResolvedEngine, asked: object): CommandLine {
  const own = engine === 'command' ? { command: ['serve', '{port}'] } : {};
  const spec = modelSchema.parse({ name: 'm', source: '/m', ...own, ...asked });
  const tensor = spec.parallel.tensor === 'auto' ? 1 : spec.parallel.tensor;
  const unit = unitOf(spec, {
    engine,
    device_kind: 'gpu',
    kv_tokens: spec.kv_tokens ?? 4096,
    device_count: tensor * stageBounds(spec).stages_max,
    memory: { device_bytes: 9e9, kv_bytes: 3e9, share: 0.9 },
  });
  return adapterOf(engine as Exclude<ResolvedEngine, 'native'>).commandLine(unit, {
    runtime_folder: '/run/u',
    port: 40_000,
    key: 'k'.repeat(64),
    engine_prefix: [],
    probed: { version: '1.0.0', unix_socket: false },
    emulated: false,
  });
}

test('every field is in the table, and nothing else is', () => {
  const split = {
    parallel: ['tensor', 'pipeline', 'jobs', 'lenders'],
    timeouts: Object.keys(modelSchema.shape.timeouts.parse({})),
  };
  // `total_s` has no default, so that it is not among the parsed ones.
  const timeouts = new Set([...split.timeouts, 'total_s']);
  const names = Object.keys(modelSchema.shape).flatMap((name) =>
    name === 'parallel'
      ? split.parallel.map((part) => `parallel.${part}`)
      : name === 'timeouts'
        ? [...timeouts].map((part) => `timeouts.${part}`)
        : [name],
  );
  expect(Object.keys(fieldEffects).sort()).toEqual(names.sort());
});

describe('a field of some engines', () => {
  const fields = (Object.entries(fieldEffects) as [FieldName, ActsOn][]).filter(
    ([field, effect]) => Array.isArray(effect) && !elsewhere.has(field),
  );
  it.each(fields)('%s changes their command lines, and no other’s', (field) => {
    for (const engine of wrapped) {
      if (field === 'parallel.pipeline' && engine === 'command') continue;
      if (field === 'parallel.tensor' && engine === 'command') continue;
      const sample = samples[field]!(engine);
      const plain = JSON.stringify(lineOf(engine, {}));
      let changed: boolean;
      try {
        changed = JSON.stringify(lineOf(engine, sample)) !== plain;
      } catch (error) {
        if (!(error instanceof HpcserveError)) throw error;
        // Its adapter refuses what the table refuses before anything is submitted.
        changed = false;
      }
      expect({ engine, acts: changed }).toEqual({ engine, acts: actsOn(engine, field) });
    }
  });
});

const refusal = (asked: object, planned?: Partial<PlannedModel>): string => {
  const model: ModelSpec = modelSchema.parse({ name: 'm', source: '/m', ...asked });
  try {
    refuseWithoutEffect(
      [model],
      planned && [{ model: 'm', groups: [], ...planned } as unknown as PlannedModel],
    );
  } catch (error) {
    if (error instanceof HpcserveError) return error.toText();
    throw error;
  }
  return '';
};

describe('what would have no effect', () => {
  it('is refused by name, with what to do', () => {
    const text = refusal({ engine: 'vllm', kv_tokens: 4096, kv_type: 'q8_0' });
    expect(text).toMatch(/kv_type, kv_tokens of m would have no effect: engine vllm is asked for/);
    expect(text).toMatch(/E_CONFIG_CONFLICT/);
    expect(refusal({ engine: 'sglang', kv_tokens: 4096 })).toMatch(
      /the plan gives such an engine a share of the memory[\s\S]*write engine: native/,
    );
    expect(refusal({ engine: 'native', engine_args: ['--x'] })).toMatch(/engine_args of m/);
    expect(refusal({ engine: 'llama.cpp', kv_tokens: 4096 })).toBe('');
  });

  it('is refused before placement where the engine is named, and after it where the plan chose', () => {
    const spec = deploymentSchema.parse({
      name: 'd',
      models: [{ name: 'm', source: '/m', engine: 'vllm', batch_invariant: true }],
    });
    expect(() => checkModels(spec, 'here', [])).toThrow(/batch_invariant of m/);
    const auto = { engine: 'auto', batch_invariant: true };
    expect(refusal(auto)).toBe('');
    expect(refusal(auto, { engine: 'vllm' })).toMatch(/engine vllm was chosen/);
    expect(refusal(auto, { engine: 'native' })).toBe('');
    // Where one of several engines acts on it, it has an effect.
    const groups = [{ engine: 'native' }, { engine: 'vllm' }] as PlannedModel['groups'];
    expect(refusal(auto, { engine: 'vllm', groups })).toBe('');
  });

  it('is nothing that was left at its default', () => {
    for (const engine of engines) {
      const own = engine === 'command' ? { command: ['serve', '{port}'] } : {};
      const model = modelSchema.parse({ name: 'm', source: '/m', engine, ...own });
      expect(fieldsWithoutEffect(model, [engine])).toEqual([]);
      const one = modelSchema.parse({ ...model, parallel: { tensor: 1 } });
      expect(fieldsWithoutEffect(one, [engine])).toEqual([]);
    }
  });
});
