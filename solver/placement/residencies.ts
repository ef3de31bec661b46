/**
 * Where weights lie of models that leave it to the plan (`weights: auto`). On their devices, where those hold all of
 * them: nothing is faster. Else every model is weighed by what a request takes of it with its weights resident, reused
 * and streamed, and by the memory that each takes; what is chosen counts once all replicas have found their places.
 */
import type { Placement, PlacementModel, PlacementQuestion, Residency } from '../../spec/plan.ts';
import { busyShare, chooseResidencies, type ModelOptions } from '../streaming/choose-residencies.ts';
import { type ResidencyCost, residencyCosts } from '../streaming/residency-cost.ts';
import { deviceTypes } from './allocation.ts';
import { lyingSo, residencyOfMost } from './decided-model.ts';
import type { LatencyEstimator } from './latency-estimator.ts';
import { shapeOf, streamedStep, workloadOf } from './model-facts.ts';
import { type PlacementOption, placementOptions } from './options.ts';
import { formatGib } from './unit-memory.ts';

/** Of the devices' memory, what is divided; less is tried where more does not pack into nodes. */
const memory_shares = [1, 0.85, 0.7, 0.5, 0.25, 0] as const;
/**
 * What runs is left as it is unless requests would take less time by this factor. Lower: rates that change start jobs
 * anew; higher: jobs stay as they were planned for other rates.
 */
const change_gain = 1.5;
/** At a load that no replica feels. */
const unloaded_replicas = 1000;

interface OpenModel extends ModelOptions {
  model: PlacementModel;
}

interface Choice {
  of: ReadonlyMap<string, Residency>;
  because: (model: string) => string;
}

interface Tried {
  choice: Choice;
  placement: Placement;
}

/** The model as it is where its weights lie so. */
export function withResidency(model: PlacementModel, weights: Residency): PlacementModel {
  return { ...model, spec: lyingSo(model.spec, weights) };
}

/**
 * Places the models with what is chosen for those that leave it to the plan, and says why.
 * @param attempt places a question in which nothing is left open
 */
export function placeWithResidencies(
  question: PlacementQuestion,
  estimator: LatencyEstimator,
  attempt: (settled: PlacementQuestion) => Placement,
): Placement {
  const names = question.models.filter(({ spec }) => spec.weights === 'auto').map(({ spec }) => spec.name);
  if (names.length === 0) return attempt(question);
  const place = (choice: Choice): Placement => attempt(settled(question, choice));
  const lying: Choice = {
    of: new Map(names.map((name) => [name, 'resident'])),
    because: () => 'the devices hold all models so',
  };
  const running = runningChoice(question, names);
  // First: all attempts have one deadline, and most plans of what runs leave it so.
  const kept = running && place(running);
  const runsOnDevice = running !== undefined && names.every((name) => running.of.get(name) === 'resident');
  const onDevice = kept !== undefined && runsOnDevice ? kept : place(lying);
  if (onDevice.unplaced.length === 0 && (running === undefined || runsOnDevice))
    return explained(onDevice, lying, []);
  const models = openModels(question, estimator);
  const { placed, nearest } = placedChoices(question, models, place, onDevice);
  if (onDevice.unplaced.length === 0) placed.push({ choice: lying, placement: onDevice });
  const busy = ({ of }: Choice): number =>
    models.reduce((sum, model) => sum + busyShare(model, costOf(model, of) ?? never), 0);
  const best = placed.toSorted((a, b) => busy(a.choice) - busy(b.choice))[0];
  if (running !== undefined && kept?.unplaced.length === 0) {
    if (best === undefined || busy(running) <= change_gain * busy(best.choice))
      return explained(kept, running, models);
  }
  if (best !== undefined) return explained(best.placement, best.choice, models);
  return nearest === undefined ? onDevice : explained(nearest.placement, nearest.choice, models);
}

const never = { request_s: Number.POSITIVE_INFINITY } as ResidencyCost;

function costOf({ options, name }: ModelOptions, of: Choice['of']): ResidencyCost | undefined {
  return options.find(({ residency }) => residency === of.get(name));
}

/** What most running replicas of each model have, where each has some. */
function runningChoice({ running = [] }: PlacementQuestion, names: readonly string[]): Choice | undefined {
  const of = new Map<string, Residency>();
  for (const name of names) {
    const weights = residencyOfMost(running.filter(({ model }) => model === name));
    if (weights === undefined) return undefined;
    of.set(name, weights);
  }
  return { of, because: () => 'it runs so, and another choice would save too little' };
}

/** Choices whose replicas all find a place, and of the others the one that places most. */
function placedChoices(
  question: PlacementQuestion,
  models: readonly OpenModel[],
  place: (choice: Choice) => Placement,
  onDevice: Placement,
): { placed: Tried[]; nearest: Tried | undefined } {
  const tried = new Set<string>();
  const placed: Tried[] = [];
  let nearest: Tried | undefined;
  const memory_bytes = memoryFor(question);
  const withoutReuse = models.map((model) => ({
    ...model,
    options: model.options.filter(({ residency }) => residency !== 'reuse'),
  }));
  // A model that can lie nowhere is left out: its rejections are those of its weights on a device.
  for (const some of [models, withoutReuse]) {
    const possible = some.filter(({ options }) => options.length > 0);
    for (const share of memory_shares) {
      const choice = choiceIn(possible, share * memory_bytes);
      const key = JSON.stringify([...choice.of]);
      if (tried.has(key)) continue;
      tried.add(key);
      const placement = place(choice);
      if (placement.unplaced.length === 0) {
        placed.push({ choice, placement });
        break;
      }
      if (missing(placement) < missing(nearest?.placement ?? onDevice)) nearest = { choice, placement };
    }
  }
  return { placed, nearest };
}

function missing({ unplaced }: Placement): number {
  return unplaced.reduce((sum, { replicas }) => sum + replicas, 0);
}

/** In that memory; where it does not hold the least of all, each with the least that it can have. */
function choiceIn(models: readonly OpenModel[], memory_bytes: number): Choice {
  const chosen =
    chooseResidencies(models, memory_bytes) ??
    models.map(({ name, options }) => ({
      name,
      residency: options.reduce((best, next) => (next.device_bytes < best.device_bytes ? next : best))
        .residency,
      because: 'the devices hold no more of it beside the others',
    }));
  const reasons = new Map(chosen.map(({ name, because }) => [name, because]));
  return {
    of: new Map(chosen.map(({ name, residency }) => [name, residency])),
    because: (name) => reasons.get(name)!,
  };
}

function settled(question: PlacementQuestion, { of }: Choice): PlacementQuestion {
  const models = question.models.map((model) =>
    model.spec.weights === 'auto' ? withResidency(model, of.get(model.spec.name) ?? 'resident') : model,
  );
  return { ...question, models };
}

/** The models that are open, and what each costs in every residency that it can have. */
function openModels(question: PlacementQuestion, estimator: LatencyEstimator): OpenModel[] {
  const open = question.models.filter(({ spec }) => spec.weights === 'auto');
  const all_per_s = open.reduce((sum, model) => sum + workloadOf(model).rate_per_s, 0);
  return open.map((model) => {
    const { rate_per_s } = workloadOf(model);
    // As if only the model that was asked last were there.
    const kept_probability = all_per_s > 0 ? rate_per_s / all_per_s : 0;
    const options = (['resident', 'reuse', 'streamed'] as const).flatMap(
      (residency) =>
        residencyCost(model, residency, question, estimator, {
          kept_probability,
          arena_share: 1 / open.length,
        }) ?? [],
    );
    return { model, name: model.spec.name, requests_per_s: rate_per_s, options: promised(model, options) };
  });
}

/** Those that keep what the model is promised, where any does. */
function promised({ spec }: PlacementModel, options: readonly ResidencyCost[]): readonly ResidencyCost[] {
  const { ttft_ms = Number.POSITIVE_INFINITY, tpot_ms = Number.POSITIVE_INFINITY } = spec.slo;
  const keeping = options.filter(
    ({ switch_s, iteration_s }) => 1000 * switch_s <= ttft_ms && 1000 * iteration_s <= tpot_ms,
  );
  return keeping.length > 0 ? keeping : options;
}

/** By the fastest of its options; undefined where there is none. */
function residencyCost(
  model: PlacementModel,
  residency: Residency,
  question: PlacementQuestion,
  estimator: LatencyEstimator,
  { kept_probability, arena_share }: { kept_probability: number; arena_share: number },
): ResidencyCost | undefined {
  const so = withResidency(model, residency);
  const shape = shapeOf(so);
  const options = question.node_kinds.flatMap((offer) => {
    const found = placementOptions(so, shape, offer, question);
    return 'constraint' in found ? [] : found;
  });
  if (options.length === 0) return undefined;
  const iteration_s = (option: PlacementOption): number => {
    const predicted = estimator.predict(option, unloaded_replicas, 1);
    if (predicted !== undefined) return predicted.tpot_ms / 1000;
    return option.weight_bytes / option.device.memory_bandwidth_bytes_per_s;
  };
  const option = options.reduce((best, next) => (iteration_s(next) < iteration_s(best) ? next : best));
  const { rate_per_s, output_tokens } = workloadOf(so);
  const replicas = typeof so.spec.replicas === 'number' ? Math.max(1, so.spec.replicas) : 1;
  const { bytes, link_bytes_per_s } = streamedStep(so, option.device, option.seen);
  const { arena_bytes, bytes_per_device } = option.memory;
  const cost = residencyCosts({
    weight_bytes: option.weight_bytes,
    working_bytes: bytes_per_device - (arena_bytes ?? option.weight_bytes),
    // One arena is there for all such models of a device.
    arena_bytes: arena_share * (arena_bytes ?? 0),
    resident_share: 0,
    requests_per_s: rate_per_s / replicas,
    iterations_per_request: 1 + output_tokens,
    iteration_s: iteration_s(option),
    iteration_link_bytes: bytes,
    link_bytes_per_s,
    kept_probability,
  })[residency];
  return { ...cost, device_bytes: replicas * cost.device_bytes };
}

/** What the devices have for models that are open: their memory, less what the others take. */
function memoryFor(question: PlacementQuestion): number {
  const { settings } = question;
  const all_bytes = deviceTypes(question).reduce((sum, { offers, count }) => {
    const { devices, memory_bytes } = offers[0]!;
    const host_bytes = (memory_bytes - settings.host_overhead_bytes) / devices.count;
    const isHosts = devices.kind === 'cpu' || devices.emulated !== undefined;
    return sum + count * (isHosts ? Math.min(devices.memory_bytes, host_bytes) : devices.memory_bytes);
  }, 0);
  const taken_bytes = question.models
    .filter(({ spec }) => spec.weights === 'resident')
    .reduce((sum, { spec, weight_bytes }) => {
      const replicas = typeof spec.replicas === 'number' ? spec.replicas : 1;
      return sum + replicas * weight_bytes;
    }, 0);
  return Math.max(0, all_bytes - taken_bytes);
}

/** The plan with why weights lie where they do, and what else they could have. */
function explained(placement: Placement, choice: Choice, models: readonly OpenModel[]): Placement {
  const described = placement.models.map((planned) => {
    const residency = choice.of.get(planned.model);
    if (residency === undefined) return planned;
    const options = models.find(({ name }) => name === planned.model)?.options ?? [];
    const why = `weights: auto: ${residency}: ${choice.because(planned.model)}${figures(options)}`;
    return { ...planned, reasons: [why, ...planned.reasons] };
  });
  return { ...placement, models: described };
}

function figures(options: readonly ResidencyCost[]): string {
  if (options.length === 0) return '';
  const each = options.map(
    ({ residency, device_bytes, request_s }) =>
      `${residency} ${formatGib(device_bytes)}${residency === 'reuse' ? ' on average' : ''} and ${seconds(request_s)} a request`,
  );
  return ` (${each.join(', ')})`;
}

function seconds(s: number): string {
  return s < 1 ? `${Math.ceil(1000 * s)} ms` : `${Number(s.toPrecision(2))} s`;
}
