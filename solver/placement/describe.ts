/** A chosen placement in words and figures: what each model gets, what it may expect, and what else could have been. */
import {
  context_tokens_default,
  type PlacementModel,
  type PlacementQuestion,
  type PlannedGroup,
  type PlannedModel,
  type Prediction,
  type RunnerUp,
} from '../../spec/plan.ts';
import { engineFeatures } from '../catalog/engine-defaults.ts';
import { kvBytesPerToken } from '../catalog/kv-type.ts';
import { type Allocation, devicesTaken } from './allocation.ts';
import { type LatencyEstimator, uncalibrated } from './latency-estimator.ts';
import { streamedStep, workloadOf } from './model-facts.ts';
import { type OptionCost, penalty, replicasAtOnce } from './objective.ts';
import type { PlacementOption } from './options.ts';
import { poolWords } from './pools.ts';
import { formatGib, type UnitMemory } from './unit-memory.ts';

/** Runners-up that are listed: more are noise. */
const runners_up_max = 6;

export interface PlacedModel {
  model: PlacementModel;
  /** All that were possible. */
  options: readonly PlacementOption[];
  /** What was taken: replicas and their share of the requests, in the order of first use. */
  placed: Allocation;
}

export interface Describing {
  question: PlacementQuestion;
  estimator: LatencyEstimator;
  costOf: OptionCost;
  /** Devices of each node kind that nobody took. */
  devices_left: ReadonlyMap<PlacementOption['offer'], number>;
  /** Of streamed weights: what every replica of an option has staying on its device. */
  resident_bytes: (option: PlacementOption) => number;
  /** The same: what every replica has of its host for page-locked copies. */
  locked_bytes: (option: PlacementOption) => number;
  /** The same: of the rate of its link, what every replica gets at least. */
  link_share: (option: PlacementOption) => number;
}

/** @param placed with at least one option */
export function plannedModel({ model, options, placed }: PlacedModel, about: Describing): PlannedModel {
  const entries = [...placed];
  const [first] = entries[0]!;
  const replicas = entries.reduce((sum, [, allocated]) => sum + allocated.replicas, 0);
  const running = entries.filter(([, allocated]) => allocated.replicas > 0);
  const groups = running.map(([option, allocated]) =>
    groupOf(withResident(option, about), allocated.replicas, allocated.share, about.estimator),
  );
  const where = running.map(([option, allocated]) => {
    const { node_kind, devices } = option.offer;
    const emulated = devices.emulated ? ', emulated on CPU' : '';
    return `${allocated.replicas} on ${node_kind} (${devices.model}${emulated}${splitWords(option)})`;
  });
  const planned: PlannedModel = {
    model: model.spec.name,
    engine: first.engine,
    reasons: [
      ...new Set(entries.flatMap(([option]) => option.reasons)),
      ...new Set(running.flatMap(([option]) => poolWords(model, option.offer))),
      ...new Set(running.flatMap(([option]) => sharedLinkWords(option, about.link_share(option)))),
      ...new Set(running.flatMap(([option]) => residentWords(option, about))),
      ...new Set(running.flatMap(([option]) => lockedWords(about.locked_bytes(option)))),
      ...new Set(entries.flatMap(([option]) => [batchWords(option), ...speedWords(option)])),
      ...(where.length > 0 ? [`replicas: ${where.join(', ')}`] : []),
    ],
    replicas,
    weight_bytes: first.weight_bytes,
    context_tokens: first.memory.context_tokens,
    kv_tokens: first.memory.kv_tokens,
    kv_bytes: first.memory.kv_tokens * kvBytesPerToken(first.engine, model, first.precision),
    workload: workloadOf(model),
    groups,
    runners_up: replicas === 0 ? [] : runnersUp({ model, options, placed }, about),
  };
  if (first.memory.arena_bytes !== undefined) planned.arena_bytes = first.memory.arena_bytes;
  const resident_bytes = Math.min(...running.map(([option]) => about.resident_bytes(option)));
  if (running.length > 0 && resident_bytes > 0) planned.resident_bytes = resident_bytes;
  return planned;
}

/** The option as it is once all replicas have their places. */
function withResident(option: PlacementOption, about: Describing): PlacementOption {
  const resident_bytes = about.resident_bytes(option);
  const link_share = about.link_share(option);
  const alone = link_share === 1 ? option : { ...option, link_share };
  return resident_bytes === 0 ? alone : { ...alone, memory: { ...option.memory, resident_bytes } };
}

/** What a link that others read over, too, leaves. */
function sharedLinkWords({ offer, seen, model, device }: PlacementOption, link_share: number): string[] {
  // What was measured beside others has their part.
  if (link_share >= 0.995 || seen?.link_bytes_per_s !== undefined) return [];
  const { link, link_bytes_per_s } = streamedStep(model, device, seen, 0, link_share);
  return [
    `slices of ${offer.devices.model} that stream share a link (${link}): one of them has ${Math.round(100 * link_share)} % of what it would read alone, ${Number((link_bytes_per_s / 1e9).toPrecision(2))} GB/s`,
  ];
}

function residentWords(option: PlacementOption, about: Describing): string[] {
  const resident_bytes = about.resident_bytes(option);
  if (resident_bytes === 0) return [];
  const { model, device, seen, offer } = option;
  const step = streamedStep(model, device, seen, resident_bytes, about.link_share(option));
  const { bytes, seconds, experts_s } = step;
  const rest =
    bytes > 0
      ? `a step${experts_s > 0 ? ' of one token' : ''} brings ${formatGib(bytes)}, which takes ${Math.ceil(1000 * seconds)} ms at least`
      : 'no step brings any more';
  return [
    `layers of ${formatGib(resident_bytes)} stay on ${offer.devices.model}, in memory that nothing else of the plan takes: ${rest}`,
  ];
}

function lockedWords(locked_bytes: number): string[] {
  if (locked_bytes === 0) return [];
  return [
    `up to ${formatGib(locked_bytes)} more of the host hold page-locked copies of its weights, which products of the device read where they are (HybridGEMM)`,
  ];
}

/** What one replica takes, where that is more than a device. */
function splitWords({ device_count, nodes, lender, lent }: PlacementOption): string {
  if (device_count === 1) return '';
  if (nodes === 1) return `, ${device_count} devices each`;
  const onNode = device_count / nodes;
  const devices = `${onNode} ${onNode === 1 ? 'device' : 'devices'}`;
  if (lender && lent && !lent.isAlike)
    return `, each with ${devices} on one node, and ${onNode} × ${lender.devices.model} on each of ${nodes - 1} node(s) of ${lender.node_kind}`;
  return `, each with ${devices} on each of ${nodes} nodes`;
}

/** What an engine is counted on to do with many requests, and who says so. */
function batchWords({ engine, batch, model, seen }: PlacementOption): string {
  const { max_sequences, prefill_chunk_tokens, engine_args } = model.spec;
  const who =
    seen?.max_sequences !== undefined
      ? 'as it says'
      : max_sequences !== undefined
        ? 'as model.yaml says'
        : 'its default';
  const { prefix_caching, chunked_prefill } = engineFeatures(engine, engine_args);
  const chunks = prefill_chunk_tokens !== undefined ? 'as model.yaml says' : 'its default';
  const on = (name: string, is: boolean | undefined): string[] =>
    is === undefined ? [] : [`${name} ${is ? 'on' : 'off'}`];
  return [
    `${engine} computes up to ${seen?.max_sequences ?? batch.max_sequences} sequences at once (${who})`,
    `${batch.batched_tokens} tokens a step (${chunks})`,
    ...on('prefix caching', prefix_caching),
    ...on('chunked prefill', chunked_prefill),
  ].join(', ');
}

function speedWords(option: PlacementOption): string[] {
  const clauses = uncalibrated(option);
  return clauses.length === 0 || option.shape === undefined ? [] : [`speeds: ${clauses.join('; ')}`];
}

function groupOf(
  option: PlacementOption,
  replicas: number,
  share: number,
  estimator: LatencyEstimator,
): PlannedGroup {
  const predicted = estimator.predict(option, replicas, share);
  return {
    node_kind: option.offer.node_kind,
    device: option.offer.devices.model,
    engine: option.engine,
    precision: option.precision,
    tensor: option.tensor,
    pipeline: option.pipeline,
    replicas,
    traffic_share: share,
    predicted,
  };
}

function runnersUp({ model, options, placed }: PlacedModel, about: Describing): RunnerUp[] {
  const { question, estimator, costOf, devices_left } = about;
  const chosen = [...placed].filter(([, { replicas }]) => replicas > 0);
  const all = chosen.reduce((sum, [, { replicas }]) => sum + replicas, 0);
  const costChosen = chosen.reduce(
    (sum, [option, { replicas, share }]) => sum + costOf(option, replicas, share),
    0,
  );
  const own = (offer: PlacementOption['offer']): number =>
    chosen
      .filter(([option]) => option.offer === offer || (offer.pool && option.offer.pool?.id === offer.pool.id))
      .reduce((sum, [option, { replicas }]) => sum + replicas * devicesTaken(option, question), 0);
  return options
    .filter((option) => !(chosen.length === 1 && chosen[0]![0] === option))
    .map((option) => {
      const replicas = replicasFor(option, model, all, estimator);
      const cost = costOf(option, replicas, 1);
      const predicted = estimator.predict(option, replicas, 1);
      const devices = Math.ceil(replicas * devicesTaken(option, question));
      const left = Math.floor((devices_left.get(option.offer) ?? 0) + own(option.offer));
      const reason = (): string => {
        if (devices > left) return `needs ${devices} devices; ${left} are left`;
        // Only a search that was cut short leaves something cheaper.
        if (cost < 0.999 * costChosen) return 'the search did not come to it';
        return whyDearer(option, replicas, predicted, chosen, about);
      };
      return {
        cost,
        runner: {
          node_kind: option.offer.node_kind,
          device: option.offer.devices.model,
          engine: option.engine,
          precision: option.precision,
          tensor: option.tensor,
          replicas,
          devices,
          predicted,
          cost_ratio: costChosen > 0 ? cost / costChosen : 1,
          because: reason(),
        },
      };
    })
    .sort((a, b) => a.cost - b.cost)
    .slice(0, runners_up_max)
    .map(({ runner }) => runner);
}

/** As many as asked for; with `auto`, as many as keep up. */
function replicasFor(
  option: PlacementOption,
  model: PlacementModel,
  chosen: number,
  estimator: LatencyEstimator,
): number {
  return model.spec.replicas !== 'auto' ? chosen : replicasThatKeepUp(option, estimator);
}

/** Replicas that sustain the workload, with some room. */
export function replicasThatKeepUp(option: PlacementOption, estimator: LatencyEstimator): number {
  const sustained = estimator.maxRate(option);
  if (sustained === undefined) return 1;
  return Math.max(1, Math.ceil(workloadOf(option.model).rate_per_s / (0.85 * sustained)));
}

function whyDearer(
  option: PlacementOption,
  replicas: number,
  predicted: Prediction | undefined,
  chosen: readonly (readonly [PlacementOption, { replicas: number; share: number }])[],
  { question, estimator }: Describing,
): string {
  const [[first, allocated]] = chosen as [(typeof chosen)[number]];
  const theirs = estimator.predict(first, allocated.replicas, allocated.share);
  const percent = (share: number): string => `${(100 * share).toFixed(share > 0.99 ? 1 : 0)} %`;
  const seconds = (ms: number): string => `${(ms / 1000).toPrecision(2)} s`;
  if (predicted && theirs) {
    if (predicted.slo_attainment < theirs.slo_attainment - 0.005)
      return `${percent(predicted.slo_attainment)} of requests within the SLO, not ${percent(theirs.slo_attainment)}`;
    const power = question.objective === 'energy' && predicted.power_w > theirs.power_w;
    if (power) return `draws ${Math.round(predicted.power_w)} W, not ${Math.round(theirs.power_w)} W`;
  }
  if (replicas > replicasAtOnce(option) && replicasAtOnce(first) >= allocated.replicas)
    return 'its nodes are taken now: it would wait in the queue';
  if (option.offer.tier !== 'stable' && first.offer.tier === 'stable') return 'its nodes may be preempted';
  if (
    workloadOf(option.model).source === 'assumed' &&
    option.memory.kv_tokens < option.memory.kv_tokens_wanted &&
    first.memory.kv_tokens >= first.memory.kv_tokens_wanted
  )
    return `room for ${option.memory.kv_tokens} tokens of KV cache, not ${option.memory.kv_tokens_wanted}`;
  const devices = option.device_count * replicas;
  const taken = chosen.reduce((sum, [each, { replicas: count }]) => sum + each.device_count * count, 0);
  if (devices > taken) return `takes ${devices} devices, not ${taken}`;
  if (option.offer.devices.memory_bytes > first.offer.devices.memory_bytes) return 'takes larger devices';
  if (option.steps_down > first.steps_down) return `computes in ${option.precision}`;
  const runs = (question.running ?? []).some((each) => each.model === option.model.spec.name);
  if (runs && penalty(option, replicas, question) > penalty(first, allocated.replicas, question))
    return 'running replicas would move';
  if (predicted && theirs && predicted.e2e_ms > theirs.e2e_ms * 1.02)
    return `${seconds(predicted.e2e_ms)} a request, not ${seconds(theirs.e2e_ms)}`;
  return 'as good by the objective; another came first';
}

/** Engines that reserve memory for a whole context are given less of it by default, whatever there is. */
function isBoundedByMemory(
  { context_tokens }: UnitMemory,
  { trained_context_tokens }: PlacementModel,
): boolean {
  return context_tokens < trained_context_tokens && context_tokens !== context_tokens_default;
}

/** Lenders that make a pipeline slower by more than that are told of. */
const slowdown_told = 1.5;

/** What a person should know of a model's placement before it is deployed. */
export function placementWarnings(
  planned: PlannedModel,
  placed: Allocation,
  model: PlacementModel,
): string[] {
  const { name, slo } = model.spec;
  const warnings: string[] = [];
  for (const { memory, offer, engine, device_note, lender, lent } of placed.keys()) {
    if (lender && lent && lent.slowdown > slowdown_told)
      warnings.push(
        `${name}: its stages on ${lender.devices.model} (${lender.node_kind}) make each batch take ${lent.slowdown.toFixed(1)} times as long as stages on ${offer.devices.model} alone would; devices.kind and devices.models of model.yaml keep it from such nodes`,
      );
    if (device_note !== undefined && !offer.devices.emulated)
      warnings.push(`${offer.node_kind}: ${device_note}`);
    if (memory.kv_tokens < memory.kv_tokens_wanted)
      warnings.push(
        `${name} on ${offer.node_kind}: memory leaves room for ${memory.kv_tokens} KV tokens of the ${memory.kv_tokens_wanted} wanted (max_sequences × context_tokens); long requests may wait`,
      );
    if (model.spec.context_tokens === undefined && isBoundedByMemory(memory, model))
      warnings.push(
        `${name} on ${offer.node_kind}: sequences of at most ${memory.context_tokens} tokens, of the ${model.trained_context_tokens} the model was trained for: memory holds no more KV; ask for more devices (parallel), or for what you need (context_tokens)`,
      );
    if (engine === 'vllm' && model.format === 'gguf')
      warnings.push(`${name}: vLLM's support of GGUF files is experimental`);
    if (offer.devices.emulated)
      warnings.push(
        `${name} on ${offer.node_kind}: ${offer.devices.model} is emulated by CPUs; predicted speeds are those of the device, measured ones say nothing about it`,
      );
    const { trained_context_tokens } = model;
    if (trained_context_tokens > 0 && (model.spec.context_tokens ?? 0) > trained_context_tokens)
      warnings.push(
        `${name}: context_tokens ${model.spec.context_tokens} is beyond the ${trained_context_tokens} the model was trained for`,
      );
  }
  for (const { predicted, node_kind } of planned.groups) {
    if (predicted === undefined) continue;
    const { rate_per_s, source } = planned.workload;
    if (predicted.utilization >= 1 && source !== 'assumed')
      warnings.push(
        `${name} on ${node_kind}: the workload of ${rate_per_s} requests/s is more than the replicas take (${predicted.max_rate_per_s.toPrecision(3)}/s predicted); requests will be refused or wait`,
      );
    const targets = [
      ['ttft_ms', slo.ttft_ms, predicted.ttft_ms],
      ['tpot_ms', slo.tpot_ms, predicted.tpot_ms],
    ] as const;
    for (const [key, target, expected] of targets)
      if (target !== undefined && expected > target)
        warnings.push(
          `${name} on ${node_kind}: slo.${key} is ${target}; ${Math.round(expected)} is predicted on average`,
        );
  }
  return [...new Set(warnings)];
}
