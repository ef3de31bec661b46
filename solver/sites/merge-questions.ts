/**
 * The questions of several sites as one. What each site says for all its kinds (wall time, partitions, penalties) is
 * written onto its kinds, so that one search over all of them decides as each site would have.
 */
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import type {
  NodeKindOffer,
  PlacementModel,
  PlacementQuestion,
  PlannedWorkload,
  RunningReplicas,
} from '../../spec/plan.ts';
import { kindAt, kindsAskedAt } from './kind-names.ts';

/** Differences between two sites that are told: more say no more. */
const differences_told = 5;

/**
 * @param questions one a site, with the same models and objective, in the order in which sites were named
 * @throws HpcserveError E_SITES_DIFFER, E_CONFIG_CONFLICT
 */
export function mergeQuestions(questions: readonly PlacementQuestion[]): PlacementQuestion {
  const [first, ...others] = questions as [PlacementQuestion, ...PlacementQuestion[]];
  for (const other of others) requireSame(first, other);
  const { deployment, objective, settings } = first;
  const running = questions.flatMap(runningAt);
  return {
    deployment,
    site: questions.map(({ site }) => site).join(', '),
    models: first.models.map((_, at) => mergedModel(questions, at)),
    node_kinds: questions.flatMap(offersAt),
    settings,
    ...(objective === undefined ? {} : { objective }),
    ...(questions.some((each) => each.running) ? { running } : {}),
  };
}

function offersAt({
  site,
  node_kinds,
  time_limit_s,
  partitions,
  settings,
}: PlacementQuestion): NodeKindOffer[] {
  return node_kinds.map(({ pool, ...offer }) => ({
    ...offer,
    node_kind: kindAt(site, offer.node_kind),
    ...(pool ? { pool: { ...pool, id: kindAt(site, pool.id) } } : {}),
    ...(partitions ? { partitions } : {}),
    ...(time_limit_s === undefined ? {} : { time_limit_default_s: time_limit_s }),
    penalties: settings.penalties,
  }));
}

function runningAt({ site, running = [] }: PlacementQuestion): RunningReplicas[] {
  return running.map((each) => ({ ...each, node_kind: kindAt(site, each.node_kind) }));
}

function mergedModel(questions: readonly PlacementQuestion[], at: number): PlacementModel {
  const { workload: _, ...model } = questions[0]!.models[at]!;
  const workload = mergedWorkload(questions.flatMap(({ models }) => models[at]!.workload ?? []));
  return { ...model, spec: withKinds(model.spec, questions), ...(workload ? { workload } : {}) };
}

/** A kind that is asked for by name is one of each site that has it; at least one must. */
function withKinds(spec: ModelSpec, questions: readonly PlacementQuestion[]): ModelSpec {
  const { node_kinds } = spec.devices;
  if (node_kinds.length === 0) return spec;
  const there = questions.map(({ site, node_kinds: offers }) => ({
    site,
    kinds: [...new Set(offers.map((offer) => offer.node_kind))],
  }));
  // In the order in which the person named them.
  const found = node_kinds.flatMap((name) =>
    there.flatMap(({ site, kinds }) =>
      kindsAskedAt(site, { ...spec, devices: { ...spec.devices, node_kinds: [name] } }, kinds).map((kind) =>
        kindAt(site, kind),
      ),
    ),
  );
  if (found.length === 0)
    throw new HpcserveError('E_CONFIG_CONFLICT', {
      what: `no site has a node kind ${node_kinds.map((kind) => `"${kind}"`).join(' or ')}`,
      because: [
        `devices.node_kinds of ${spec.name} asks for it`,
        ...there.map(({ site, kinds }) => `${site} has ${kinds.join(', ') || 'none'}`),
      ],
      try: 'name one of them, as KIND or SITE/KIND, or leave devices.node_kinds out',
    });
  return { ...spec, devices: { ...spec.devices, node_kinds: [...new Set(found)] } };
}

/** Each site measures what came through its own gateways: together they had the sum of it. */
function mergedWorkload(workloads: readonly PlannedWorkload[]): PlannedWorkload | undefined {
  const measured = workloads.filter(({ source }) => source === 'measured');
  if (measured.length === 0) return workloads[0];
  const rate_per_s = measured.reduce((sum, each) => sum + each.rate_per_s, 0);
  const mean = (of: (each: PlannedWorkload) => number): number =>
    measured.reduce((sum, each) => sum + each.rate_per_s * of(each), 0) / rate_per_s;
  return {
    rate_per_s,
    input_tokens: mean(({ input_tokens }) => input_tokens),
    output_tokens: mean(({ output_tokens }) => output_tokens),
    source: 'measured',
  };
}

/** @throws E_SITES_DIFFER */
function requireSame(a: PlacementQuestion, b: PlacementQuestion): void {
  const compare = (ours: unknown, theirs: unknown): string[] =>
    differences(ours, theirs, '').map(
      ({ path, values: [here, there] }) => `${path}: ${here} on ${a.site}, ${there} on ${b.site}`,
    );
  const differ = compare(sharedBy(a), sharedBy(b));
  if (differ.length > 0)
    throw new HpcserveError('E_SITES_DIFFER', {
      what: `${a.site} and ${b.site} do not answer the same question`,
      because: differ.slice(0, differences_told),
      try: 'run the same version of hpcserve on all sites',
    });
  for (const [at, model] of a.models.entries()) {
    const other = b.models[at]!;
    const found = compare(whatItIs(model), whatItIs(other));
    if (found.length === 0) continue;
    throw new HpcserveError('E_SITES_DIFFER', {
      what: `${model.spec.name} is not the same model on ${a.site} and ${b.site}`,
      because: [
        ...found.slice(0, differences_told),
        `it is ${model.model_path} on ${a.site}, ${other.model_path} on ${b.site}`,
      ],
      try: 'bring the same model files to both, or name a source that both have (alias:NAME)',
    });
  }
}

/** Of a question, all that does not belong to the site; penalties do. */
function sharedBy({ deployment, models, objective, settings }: PlacementQuestion): object {
  const { penalties: _, ...sizes } = settings;
  return { deployment, models: models.map(({ spec }) => spec.name), objective, settings: sizes };
}

/** Of a model, all that its replicas have in common wherever they run: neither paths nor names of files. */
function whatItIs({ format, architecture, weight_bytes, summary, spec, ...model }: PlacementModel): object {
  const { kv_bytes_per_token, trained_context_tokens } = model;
  const { name: _, ...shape } = summary ?? { name: '' };
  const { source: _source, chat_template: _template, environment_files: _files, ...asked } = spec;
  const own = { format, architecture, weight_bytes, kv_bytes_per_token, trained_context_tokens };
  // The order in which differences are told.
  return { ...own, ...shape, ...asked, ...own };
}

/** Leaves of two values that are not equal. */
function differences(a: unknown, b: unknown, path: string): { path: string; values: [string, string] }[] {
  if (typeof a === 'object' && typeof b === 'object' && a !== null && b !== null) {
    const keys = [...new Set([...Object.keys(a), ...Object.keys(b)])];
    const of = (value: object, key: string): unknown => (value as Record<string, unknown>)[key];
    return keys.flatMap((key) => differences(of(a, key), of(b, key), path === '' ? key : `${path}.${key}`));
  }
  if (a === b) return [];
  return [{ path, values: [JSON.stringify(a) ?? 'nothing', JSON.stringify(b) ?? 'nothing'] }];
}
