/** Which fields of model.yaml each engine acts on: what would have no effect is refused before it is submitted. */
import { HpcserveError } from '../../spec/errors/error.ts';
import { type ModelSpec, modelSchema } from '../../spec/model-yaml.ts';
import type { PlannedModel, ResolvedEngine } from '../../spec/plan.ts';

/**
 * Who acts on a field: the plan, the agents and the gateways whatever computes (`any`); agents for every wrapped engine
 * (`wrapped`); or these engines, because their command line, or the native engine's configuration, says it.
 */
export type ActsOn = 'any' | 'wrapped' | readonly ResolvedEngine[];

/** Engines that are told numbers by arguments. */
const servers = ['vllm', 'sglang', 'lmdeploy', 'tensorrt-llm', 'tgi'] as const;

/** Every field of model.yaml; of `parallel` and `timeouts` each by itself. */
export const fieldEffects = {
  name: 'any',
  aliases: 'any',
  source: 'any',
  engine: 'any',
  engine_args: [...servers, 'llama.cpp', 'transformers', 'command'],
  command: ['command'],
  environment: 'wrapped',
  environment_files: 'wrapped',
  chat_template: ['native', 'vllm', 'sglang', 'llama.cpp', 'lmdeploy', 'tensorrt-llm'],
  // Where no argument says it, gateways hold requests to it.
  context_tokens: 'any',
  precision: ['vllm', 'sglang', 'lmdeploy', 'tgi', 'transformers'],
  precision_choices: ['vllm', 'sglang', 'lmdeploy', 'tgi', 'transformers'],
  kv_type: ['native', 'llama.cpp', 'ollama'],
  replicas: 'any',
  pools: ['native'],
  min_stable_replicas: 'any',
  workload: 'any',
  'parallel.tensor': [...servers, 'command'],
  'parallel.pipeline': ['native', 'vllm', 'sglang', 'tensorrt-llm', 'command'],
  'parallel.jobs': ['native'],
  'parallel.lenders': ['native'],
  devices: 'any',
  // Jobs ask for so many CPUs, whoever computes on them.
  cpu_threads: 'any',
  max_sequences: 'any',
  prefill_chunk_tokens: ['native', ...servers, 'llama.cpp'],
  kv_tokens: ['native', 'llama.cpp'],
  weights: ['native'],
  latency_sensitivity: ['native'],
  batch_invariant: ['native'],
  kernels: ['native'],
  parsers: ['vllm', 'sglang'],
  reasoning: 'any',
  remote_media: 'wrapped',
  'timeouts.first_token_s': 'any',
  'timeouts.between_tokens_s': 'any',
  'timeouts.total_s': 'any',
  'timeouts.health_s': 'wrapped',
  'timeouts.stall_s': 'any',
  slo: 'any',
  tier: 'any',
  scavenger: 'any',
  scaling: 'any',
} as const satisfies Record<FieldName, ActsOn>;

type Split = 'parallel' | 'timeouts';
export type FieldName =
  | Exclude<keyof ModelSpec, Split>
  | `parallel.${keyof ModelSpec['parallel']}`
  | `timeouts.${keyof ModelSpec['timeouts']}`;

/** What a person may do instead. */
const instead: Partial<Record<FieldName, string>> = {
  kv_tokens:
    'the plan gives such an engine a share of the memory, and what weights leave of it is KV; context_tokens and max_sequences bound what is used',
  engine_args: 'its settings are fields of model.yaml, and environment for Ollama',
  precision: 'the files say in which precision they are computed',
  prefill_chunk_tokens: 'it divides prompts as it does',
};

/** Fields that were given another value than their default, and that none of these engines acts on. */
export function fieldsWithoutEffect(model: ModelSpec, engines: readonly ResolvedEngine[]): FieldName[] {
  const plain: ModelSpec = modelSchema.parse({ name: model.name, source: model.source });
  return (Object.keys(fieldEffects) as FieldName[]).filter(
    (field) =>
      JSON.stringify(valueIn(model, field)) !== JSON.stringify(valueIn(plain, field)) &&
      !engines.some((engine) => actsOn(engine, field)),
  );
}

/** Whether a field of model.yaml changes anything where this engine computes. */
export function actsOn(engine: ResolvedEngine, field: FieldName): boolean {
  const effect: ActsOn = fieldEffects[field];
  if (effect === 'any') return true;
  return effect === 'wrapped' ? engine !== 'native' : effect.includes(engine);
}

function valueIn(model: ModelSpec, field: FieldName): unknown {
  const [first, second] = field.split('.') as [keyof ModelSpec, string | undefined];
  const value: unknown = model[first];
  // One device is what engines that cannot be split take anyway.
  if (field === 'parallel.tensor' && model.parallel.tensor === 1) return 'auto';
  // On the device is where the plan lets weights lie that an engine has nowhere else.
  if (field === 'weights' && model.weights === 'auto') return 'resident';
  return second === undefined ? value : (value as Record<string, unknown>)[second];
}

/**
 * What model.yaml asks for and would not get, whichever of its engines computes.
 * @param planned absent: only models whose engine is named are looked at
 * @throws HpcserveError E_CONFIG_CONFLICT that names the field
 */
export function refuseWithoutEffect(models: readonly ModelSpec[], planned?: readonly PlannedModel[]): void {
  for (const model of models) {
    const own = planned?.find((each) => each.model === model.name);
    const chosen = own === undefined ? [] : own.groups.map(({ engine }) => engine);
    const engines =
      model.pools !== undefined
        ? (['native'] as const)
        : model.engine === 'auto'
          ? [...new Set([...chosen, ...(own ? [own.engine] : [])])]
          : [model.engine];
    if (engines.length === 0) continue;
    const [field, ...others] = fieldsWithoutEffect(model, engines);
    if (field === undefined) continue;
    const acting = (Object.keys(engineWords) as ResolvedEngine[]).filter((engine) => actsOn(engine, field));
    throw new HpcserveError('E_CONFIG_CONFLICT', {
      what: `${[field, ...others].join(', ')} of ${model.name} would have no effect: engine ${engines.join(' and ')} ${model.engine === 'auto' ? 'was chosen' : 'is asked for'}`,
      because: instead[field] ?? `of all engines only ${acting.join(', ')} act on ${field}`,
      try: `remove ${[field, ...others].join(', ')}, or write engine: ${acting[0]}`,
    });
  }
}

/** All of them, in the order in which they are named to people. */
const engineWords: Record<ResolvedEngine, true> = {
  native: true,
  vllm: true,
  sglang: true,
  'llama.cpp': true,
  lmdeploy: true,
  'tensorrt-llm': true,
  tgi: true,
  transformers: true,
  ollama: true,
  command: true,
};
