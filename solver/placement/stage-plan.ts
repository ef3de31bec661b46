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
  /** Of each device, for weights and KV and `margin_weight_fraction` of the weights. */
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
/** Within this of the fastest pace a cut is as fast: rounding. */
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
  };
  const cycle_s = devices.length === 1 ? fastestPace_s(asked, devices[0]!.speed) : undefined;
  const paced = cycle_s === undefined ? asked : { ...asked, cycle_s };
  const best = partition(paced);
  if (!best.feasible) return best;
  const found = keepsCut(question, asked, best) ?? nestedCut(question, paced, best) ?? best;
  return {
    feasible: true,
    cuts: found.stages.map(({ begin, end }) => ({ begin, end })),
    shares: found.stages.map((stage) => shareOf(stage, operators)),
    partition: found,
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

interface PaceQuestion {
  operators: readonly OperatorCost[];
  stages: number;
  cuts: readonly number[];
  link_bytes_per_s: number;
  kv_tokens: number;
  devices: readonly StageDevices[];
}

/**
 * Time of the slowest stage in the fastest cut over devices that are alike, by bisection: a pace can be kept where
 * ranges that are filled one after the other are no more than the stages. Undefined where memory allows no cut at
 * all.
 */
function fastestPace_s(question: PaceQuestion, speed: number): number | undefined {
  const { operators, cuts, link_bytes_per_s, kv_tokens, devices } = question;
  const bounds = [0, ...cuts, operators.length];
  const pieces = bounds.slice(1).map((end, index) => {
    const own = operators.slice(bounds[index], end);
    const total = (of: (operator: OperatorCost) => number): number =>
      own.reduce((sum, operator) => sum + of(operator), 0);
    const weight_bytes = total((operator) => operator.weight_bytes);
    return {
      seconds: total((operator) => operator.compute_s) / speed + weight_bytes / link_bytes_per_s,
      bytes: weight_bytes + kv_tokens * total((operator) => operator.kv_bytes_per_token),
    };
  });
  const canKeep = (pace_s: number): boolean => {
    let [used, seconds, bytes] = [1, 0, 0];
    for (const piece of pieces) {
      if (piece.seconds > pace_s || piece.bytes > devices[0]!.memory_bytes) return false;
      if (seconds + piece.seconds > pace_s || bytes + piece.bytes > devices[0]!.memory_bytes) {
        used++;
        [seconds, bytes] = [0, 0];
      }
      seconds += piece.seconds;
      bytes += piece.bytes;
    }
    return used <= question.stages;
  };
  let high_s = pieces.reduce((sum, { seconds }) => sum + seconds, 0) * (1 + pace_tolerance);
  if (!canKeep(high_s)) return undefined;
  let low_s = 0;
  while (high_s - low_s > pace_tolerance * high_s) {
    const middle_s = (low_s + high_s) / 2;
    if (canKeep(middle_s)) high_s = middle_s;
    else low_s = middle_s;
  }
  return high_s;
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
