/**
 * Where a model is cut for a given number of stages, and why: `solver/partition` (FlexPipe Eq. 2) is asked with what
 * the operators take on the devices there are, and with the memory of each. Pure.
 *
 * Cuts lie between layers. What Eq. 2 leaves open is settled by the pace of a pipeline, which is that of its slowest
 * stage: C is the time of that stage in the fastest of all cuts, so that no cut with a slower one is chosen, and
 * loading weighs as often as it happens, once in the life of a stage.
 */
import { nestedWith } from '../partition/nested.ts';
import type { OperatorCost } from '../partition/operator-graph.ts';
import {
  type ModelPartition,
  type NoPartition,
  type PartitionQuestion,
  type PartitionStage,
  partition,
  type StageDevices,
} from '../partition/partition.ts';
import { type OperatorQuestion, operatorCosts } from './stage-operators.ts';

/** Operators [begin, end) of a stage: 0 is the embedding, 1 + 2l and 2 + 2l are layer l, the last one is the head. */
export interface StageCut {
  begin: number;
  end: number;
}

/** What a stage holds, as memory is planned for it. */
export interface StageShare {
  weight_bytes: number;
  layers: number;
}

export interface StagePlanQuestion extends OperatorQuestion {
  stages: number;
  /**
   * As many as stages, which lie on them in this order. Of each, memory for weights and KV and `margin_weight_fraction`
   * of the weights.
   */
  devices: readonly StageDevices[];
  margin_weight_fraction: number;
  /** Tokens whose keys and values every stage has room for at least. */
  kv_tokens: number;
  /** Stages of the pipeline that becomes this one; absent: there is none. */
  from?: readonly StageCut[];
}

export interface StagePlan {
  feasible: true;
  cuts: StageCut[];
  shares: StageShare[];
  partition: ModelPartition;
  /** What a batch takes in all of the model on a device of speed 1. */
  whole_s: number;
  /** `cut into 2 stages, one device each: layers 0–3, 4–7; …`. */
  reason: string;
}

/** At which a stage's weights come, bytes/s: one client of a parallel filesystem, or memory of another node. */
export const load_bytes_per_s = 2e9;
/** A stage computes for so long with what it loaded. Lower: loading weighs more against computation. */
const stage_life_s = 3600;
/**
 * The slowest stage may take so much longer than in the best cut where fewer weights and less KV have to be moved for
 * that: a pipeline that runs is not cut anew, and one that gets other stages has them split or merged. Higher: fewer
 * loads, slower pipelines.
 */
const recut_share = 0.1;
/** Within this share of the fastest pace a cut is as fast: rounding. */
const pace_tolerance = 1e-9;

export function planStages(question: StagePlanQuestion): StagePlan | NoPartition {
  const { stages, devices, margin_weight_fraction, kv_tokens } = question;
  const { operators, times } = operatorCosts(question, stages);
  const compute_s = operators.reduce((sum, operator) => sum + operator.compute_s, 0);
  const asked = {
    operators,
    stages,
    // Of the memory, the margin for weights grows with them.
    devices: devices.map((device) => ({
      ...device,
      memory_bytes: device.memory_bytes / (1 + margin_weight_fraction),
    })),
    link_bytes_per_s: (load_bytes_per_s * stage_life_s * stages) / compute_s,
    kv_tokens: kv_tokens / (1 + margin_weight_fraction),
    cuts: layerCuts(operators),
    in_order: true,
  };
  const cycle_s = fastestPace_s(asked);
  const paced = cycle_s === undefined ? asked : { ...asked, cycle_s };
  // Where devices have different speeds, an optimum of Eq. 2 may have a slower stage.
  const best = partition(
    cycle_s === undefined ? asked : { ...paced, stage_s_max: cycle_s * (1 + pace_tolerance) },
  );
  if (!best.feasible) return best;
  const found = keepsCut(question, asked, best) ?? nestedCut(question, paced, best) ?? best;
  return {
    feasible: true,
    cuts: found.stages.map(({ begin, end }) => ({ begin, end })),
    shares: found.stages.map((stage) => shareOf(stage, operators)),
    partition: found,
    whole_s: compute_s,
    reason: describe(found, operators, times),
  };
}

/** The cut of the pipeline that runs, unless another one is faster by enough to load stages anew for it. */
function keepsCut(
  { seen, stages }: StagePlanQuestion,
  asked: PartitionQuestion,
  { slowest_s }: ModelPartition,
): ModelPartition | undefined {
  if (seen?.length !== stages) return undefined;
  const running = partition({ ...asked, cuts: seen.slice(1).map(({ begin }) => begin) });
  return running.feasible && running.slowest_s <= slowest_s * (1 + recut_share) ? running : undefined;
}

/** Cuts that the pipeline has that it comes from, and new ones between them; or some of those (FlexPipe §5). */
function nestedCut(
  { from = [], stages }: StagePlanQuestion,
  asked: PartitionQuestion,
  { slowest_s }: ModelPartition,
): ModelPartition | undefined {
  const cuts = from.slice(1).map(({ begin }) => begin);
  if (cuts.length === 0 || from.length === stages) return undefined;
  const nested = nestedWith(asked, cuts);
  return nested.feasible && nested.slowest_s <= slowest_s * (1 + recut_share) ? nested : undefined;
}

/** Before the attention of each layer but the first. */
function layerCuts(operators: readonly OperatorCost[]): number[] {
  return operators.flatMap(({ kind, layer }, index) => (kind === 'attention' && layer! > 0 ? [index] : []));
}

/**
 * Computation and loading of the slowest stage in the fastest of all cuts, stages on devices in their order: by dynamic
 * programming over devices and cuts. Undefined where memory allows no cut at all.
 */
function fastestPace_s({
  operators,
  stages,
  cuts = [],
  link_bytes_per_s,
  kv_tokens = 0,
  devices,
}: PartitionQuestion): number | undefined {
  const bounds = [0, ...cuts, operators.length];
  const sums = (of: (operator: OperatorCost) => number): number[] => {
    let sum = 0;
    const upTo = [0, ...operators.map((operator) => (sum += of(operator)))];
    return bounds.map((bound) => upTo[bound]!);
  };
  const compute_s = sums((operator) => operator.compute_s);
  const load_s = sums(({ weight_bytes }) => weight_bytes / link_bytes_per_s);
  const bytes = sums(({ weight_bytes, kv_bytes_per_token }) => weight_bytes + kv_tokens * kv_bytes_per_token);
  const each = devices.flatMap((device) => new Array<StageDevices>(device.count).fill(device));
  // Up to each bound, with the devices so far.
  let best = bounds.map((_, at) => (at === 0 ? 0 : Number.POSITIVE_INFINITY));
  for (const { speed, memory_bytes } of each.slice(0, stages)) {
    const next = bounds.map(() => Number.POSITIVE_INFINITY);
    for (let end = 1; end < bounds.length; end++)
      for (let begin = end - 1; begin >= 0; begin--) {
        const stage_s = (compute_s[end]! - compute_s[begin]!) / speed + load_s[end]! - load_s[begin]!;
        if (bytes[end]! - bytes[begin]! > memory_bytes || stage_s >= next[end]!) break;
        next[end] = Math.min(next[end]!, Math.max(best[begin]!, stage_s));
      }
    best = next;
  }
  const pace_s = best.at(-1)!;
  return Number.isFinite(pace_s) ? pace_s : undefined;
}

function shareOf(
  { begin, end, weight_bytes }: PartitionStage,
  operators: readonly OperatorCost[],
): StageShare {
  const layers = operators.slice(begin, end).filter(({ kind }) => kind === 'attention').length;
  return { weight_bytes, layers };
}

function describe(
  { stages, slowest_s }: ModelPartition,
  operators: readonly OperatorCost[],
  times: string,
): string {
  const ranges = stages.map(({ begin, end }) => {
    const layers = operators.slice(begin, end).flatMap(({ layer }) => layer ?? []);
    const [first, last] = [layers[0]!, layers.at(-1)!];
    return first === last ? `${first}` : `${first}–${last}`;
  });
  const mib = Math.max(...stages.map(({ weight_bytes }) => weight_bytes)) / 2 ** 20;
  const computing = stages.map(({ compute_s }) => compute_s);
  const ms = (seconds: number): string => (1000 * seconds).toPrecision(2);
  const pass = `a batch takes ${ms(Math.min(...computing))} to ${ms(slowest_s)} ms in each (${times})`;
  const into = stages.length === 1 ? 'one stage' : `cut into ${stages.length} stages, one device each`;
  return `${into}: layers ${ranges.join(', ')}; ${pass}; the largest has ${mib.toFixed(1)} MiB of weights`;
}
