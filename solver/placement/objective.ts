/**
 * What a plan costs under each objective: numbers to add up over models and options. docs/solver.md explains
 * them; each is points, of which one device of the largest memory here is worth one.
 */
import type { Objective } from '../../spec/model-yaml.ts';
import type { PlacementQuestion, Prediction } from '../../spec/plan.ts';
import { slicesOfGpu } from '../catalog/mig.ts';
import { onRealGpu } from './engine-choice.ts';
import type { LatencyEstimator } from './latency-estimator.ts';
import { ownNodes } from './lenders.ts';
import { workloadOf } from './model-facts.ts';
import type { PlacementOption } from './options.ts';

/** What `replicas` replicas of one option cost that carry `share` (0 to 1) of their model's requests; not negative. */
export type OptionCost = (option: PlacementOption, replicas: number, share: number) => number;

/** Points for a model all of whose requests miss their SLO: so many devices are worth spending against it. */
const missing_all = 50;
/** The smallest share of requests within the SLO that `gpu-hours` and `energy` are content with. */
const attainment_enough = 0.95;
/** Points of a plan that falls short of it: above any number of devices, so that it happens only where it must. */
const falling_short = 1e6;
/** Under `latency` one more device must lower a model's latency by this share of the best one. */
const device_worth = 0.05;
/** Watts that count as one device under `energy`. */
const watts_per_point = 100;
/** Under `slo` and `gpu-hours`, latency decides between what else is equal: points at twenty times the best. */
const tie_break = 0.25;
/** Points of a CPU device: below a GPU's, since CPUs are seldom what others wait for. */
const cpu_device = 0.3;
/** Where no speed is known, a CPU counts as so much slower than a GPU. */
const unknown_cpu_slowdown = 20;

/**
 * @param byModel the options of every model, by name: latencies are measured against the best of them
 */
export function objectiveCost(
  question: PlacementQuestion,
  estimator: LatencyEstimator,
  byModel: ReadonlyMap<string, readonly PlacementOption[]>,
): OptionCost {
  const objective: Objective = question.objective ?? 'slo';
  const largest = Math.max(1, ...question.node_kinds.map(({ devices }) => devices.memory_bytes));
  const models = [...byModel.values()].flatMap((options) => (options[0] ? [options[0].model] : []));
  const totalRate = models.reduce((sum, model) => sum + workloadOf(model).rate_per_s, 0);
  const references = new Map<string, number>();
  const reference = (option: PlacementOption): number => {
    const { name } = option.model.spec;
    let best = references.get(name);
    if (best === undefined) {
      // At a load that no replica feels.
      const latencies = (byModel.get(name) ?? []).map((each) =>
        latency(each, estimator.predict(each, 1000, 1)),
      );
      best = Math.min(...latencies);
      references.set(name, best);
    }
    return best;
  };
  const price = (option: PlacementOption, replicas: number): number => {
    const { devices } = option.offer;
    const each = devices.kind === 'cpu' ? cpu_device : 0.5 + 0.5 * (devices.memory_bytes / largest);
    return each * option.device_count * replicas;
  };

  const base: Record<Objective, OptionCost> = {
    latency(option, replicas, share) {
      const { rate_per_s } = workloadOf(option.model);
      const e2e_ms = latency(option, estimator.predict(option, replicas, share));
      const relative =
        (share * e2e_ms) / 1000 + device_worth * (reference(option) / 1000) * price(option, replicas);
      return (rate_per_s / totalRate) * models.length * relative;
    },
    slo(option, replicas, share) {
      const predicted = estimator.predict(option, replicas, share);
      const missed = share * (1 - (predicted?.slo_attainment ?? 1) + excess(predicted));
      const weight = (workloadOf(option.model).rate_per_s / totalRate) * models.length;
      return missing_all * weight * missed + price(option, replicas) + slower(option, predicted, share);
    },
    'gpu-hours'(option, replicas, share) {
      const predicted = estimator.predict(option, replicas, share);
      return (
        gpusOf(option.offer) * option.device_count * replicas +
        falling_short * share * shortfall(predicted) +
        0.01 * slower(option, predicted, share)
      );
    },
    energy(option, replicas, share) {
      const predicted = estimator.predict(option, replicas, share);
      const watts = predicted?.power_w ?? option.device.tdp_w * option.device_count * replicas;
      return watts / watts_per_point + falling_short * share * shortfall(predicted);
    },
  };
  const slower = (option: PlacementOption, predicted: Prediction | undefined, share: number): number =>
    (tie_break * share * Math.min(20, latency(option, predicted) / reference(option))) / 20;

  return (option, replicas, share) => {
    const order = Math.min(9, question.node_kinds.indexOf(option.offer)) * 1e-6;
    const points = base[objective](option, replicas, share);
    return points * (1 + penalty(option, replicas, question)) + order;
  };
}

/** Of one device: a MIG slice is as much of a GPU as nobody else can have then. */
function gpusOf(offer: PlacementOption['offer']): number {
  const { kind, model } = offer.devices;
  if (kind === 'mig') return 1 / (slicesOfGpu(model) ?? 1);
  return onRealGpu(offer) || kind !== 'cpu' ? 1 : 0.01;
}

function latency(option: PlacementOption, predicted: Prediction | undefined): number {
  return predicted?.e2e_ms ?? 1000 * (option.offer.devices.kind === 'cpu' ? unknown_cpu_slowdown : 1);
}

function shortfall(predicted: Prediction | undefined): number {
  const attained = predicted?.slo_attainment ?? 1;
  return attained >= attainment_enough ? 0 : 1 - attained + excess(predicted);
}

/**
 * Load beyond what replicas take: all of it misses, and the more there is the worse, so that it is dealt out evenly.
 */
function excess(predicted: Prediction | undefined): number {
  return Math.max(0, (predicted?.utilization ?? 0) - 1);
}

/** How much dearer an option counts for what is not its speed: a mean over its replicas. */
export function penalty(option: PlacementOption, replicas: number, question: PlacementQuestion): number {
  const { offer } = option;
  const { penalties = question.settings.penalties } = offer;
  const running = Math.min(replicas, replicasRunning(option, question));
  const started = question.running === undefined ? 0 : replicas - running;
  const waiting = Math.max(0, replicas - running - replicasAtOnce(option));
  const perWaiting =
    offer.queue_wait_s === undefined ? penalties.waiting : offer.queue_wait_s / penalties.wait_horizon_s;
  return (
    (waiting / replicas) * perWaiting +
    (started / replicas) * penalties.moving +
    (offer.tier === 'stable' ? 0 : penalties.preemptible) +
    penalties.shortened_kv * kvShortage(option) +
    option.steps_down * penalties.lower_precision
  );
}

/** Share of the KV cache asked for that is not there; where the workload is known, predictions tell what that means. */
function kvShortage({ model, memory }: PlacementOption): number {
  if (workloadOf(model).source !== 'assumed') return 0;
  return Math.max(0, 1 - memory.kv_tokens / memory.kv_tokens_wanted);
}

/** Replicas of this very option that run now. */
function replicasRunning(
  { model, offer, device_count }: PlacementOption,
  question: PlacementQuestion,
): number {
  return (question.running ?? [])
    .filter(
      (each) =>
        each.model === model.spec.name &&
        each.node_kind === offer.node_kind &&
        each.device_count === device_count,
    )
    .reduce((sum, each) => sum + each.replicas, 0);
}

/** Replicas that could start without waiting, on idle nodes and in what is free of others; Infinity: nobody asked. */
export function replicasAtOnce(option: PlacementOption): number {
  const { offer, device_count, nodes, threads } = option;
  const { free, nodes_idle, devices, cpus } = offer;
  // One that takes several nodes has each of them for itself.
  const on = (room: { devices: number; cpus: number }): number => {
    const parts = Math.min(
      Math.floor((room.devices * nodes) / device_count),
      Math.floor(room.cpus / threads),
    );
    return nodes > 1 ? Math.min(1, parts) : parts;
  };
  const whole = (parts: number): number => Math.floor(parts / ownNodes(option));
  if (free !== undefined) return whole(free.reduce((sum, group) => sum + group.nodes * on(group), 0));
  if (nodes_idle === undefined) return Number.POSITIVE_INFINITY;
  return whole(nodes_idle * on({ devices: devices.count, cpus }));
}
