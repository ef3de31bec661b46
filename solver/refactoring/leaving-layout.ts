/**
 * One layout of a pipeline without the stages that leave, exactly: which of them go to the free devices, and where the
 * layers of the others are cut between the two stages around them. By dynamic programming over (stage, free devices
 * that are taken, first operator).
 */
import type { OperatorRange } from './layout.ts';

/** A device, as layouts of several nodes name it. */
export interface DeviceOfNode {
  node_index: number;
  device: string;
}

/** A stage on it. */
export interface NodeStage extends DeviceOfNode, OperatorRange {}

/** As far as it is known. */
export interface DeviceFacts {
  /** Devices of one model are as fast. */
  model?: string;
  /** What weights, keys and values may take. */
  room_bytes?: number;
}

/** A stage that computes, and what is known of it. */
export interface RunningStage extends NodeStage {
  /** What a batch takes there; absent: it was not measured. */
  compute_s?: number;
  /** Of each of its operators, where that was measured; they add up to `compute_s`. */
  operators_s?: readonly number[];
  /** Weights, keys and values. */
  memory_bytes?: number;
}

export interface LeavingPipeline {
  stages: readonly RunningStage[];
  /** Of each stage, whether it leaves. */
  leaves: readonly boolean[];
  factsOf(device: DeviceOfNode): DeviceFacts;
}

export interface FoundLayout {
  layout: NodeStage[];
  /** Stages that stay and have more than before. */
  grown: number[];
  /** Of the device that lacks most; 0: all fits, as far as is known. */
  lacking_bytes: number;
  /** What the slowest stage takes: in seconds where times are known, else in operators. */
  slowest: number;
}

/** Values that are as good: rounding. */
const tolerance = 1e-9;
const digits = 9;

/**
 * @param devices free ones: each gets one of the stages that leave, in this order
 * @param unchanged a stage that is to keep what it has; absent: none
 * @returns undefined where that one is the only one to take what leaves
 */
export function layoutOn(
  { stages, leaves, factsOf }: LeavingPipeline,
  devices: readonly DeviceOfNode[],
  unchanged?: number,
): FoundLayout | undefined {
  const costs = new OperatorCosts(stages, factsOf);
  const search = new CutSearch(stages, leaves, devices.length, unchanged);
  const placeOf = ({ at, taken }: Chosen): DeviceOfNode => (leaves[at] ? devices[taken - 1]! : stages[at]!);
  const lacking = (chosen: Chosen): number => costs.lacking_bytes(placeOf(chosen), chosen);
  const time = (chosen: Chosen): number => costs.time(placeOf(chosen), chosen);
  const largest = (a: number, b: number): number => Math.max(a, b);
  const lacking_bytes = search.best(lacking, largest).value;
  if (!Number.isFinite(lacking_bytes)) return undefined;
  const fitting = (of: (chosen: Chosen) => number) => (chosen: Chosen) =>
    lacking(chosen) <= lacking_bytes ? of(chosen) : Number.POSITIVE_INFINITY;
  const slowest = search.best(fitting(time), largest).value;
  const even = (chosen: Chosen): number =>
    time(chosen) <= slowest * (1 + tolerance) ? time(chosen) ** 2 : Number.POSITIVE_INFINITY;
  const { chosen } = search.best(fitting(even), (a, b) => a + b);
  return {
    layout: chosen.map((each) => {
      const { node_index, device } = placeOf(each);
      return { node_index, device, begin: each.begin, end: each.end };
    }),
    grown: chosen.flatMap(({ at, begin, end }) =>
      !leaves[at] && (begin < stages[at]!.begin || end > stages[at]!.end) ? [at] : [],
    ),
    lacking_bytes,
    slowest: Number(slowest.toPrecision(digits)),
  };
}

/** A stage of the layout to come: it stays, or goes to the last one of so many free devices that are taken. */
interface Chosen {
  at: number;
  taken: number;
  begin: number;
  end: number;
}

interface Best {
  value: number;
  chosen: Chosen[];
}

class CutSearch {
  readonly #stages: readonly RunningStage[];
  readonly #leaves: readonly boolean[];
  readonly #count: number;
  readonly #unchanged: number | undefined;

  constructor(
    stages: readonly RunningStage[],
    leaves: readonly boolean[],
    count: number,
    unchanged: number | undefined,
  ) {
    this.#stages = stages;
    this.#leaves = leaves;
    this.#count = count;
    this.#unchanged = unchanged;
  }

  /** The layout with the least value of all; infinite: there is none. @param join of the values of its stages */
  best(costOf: (chosen: Chosen) => number, join: (a: number, b: number) => number): Best {
    const known = new Map<string, Best>();
    const from = (at: number, taken: number, begin: number): Best => {
      const key = `${at} ${taken} ${begin}`;
      let best = known.get(key);
      if (best) return best;
      best = { value: Number.POSITIVE_INFINITY, chosen: [] };
      for (const { end, next } of this.#ways(at, taken)) {
        const chosen = { at, taken, begin, end };
        const own = this.#mayHave(chosen) ? costOf(chosen) : Number.POSITIVE_INFINITY;
        if (!Number.isFinite(own)) continue;
        const rest = next && from(next.at, next.taken, end);
        const value = rest ? join(own, rest.value) : own;
        if (value < best.value) best = { value, chosen: [chosen, ...(rest?.chosen ?? [])] };
      }
      known.set(key, best);
      return best;
    };
    return from(0, 0, this.#stages[0]!.begin);
  }

  /** Where a stage may end, and which one follows it; none behind the last. */
  *#ways(at: number, taken: number): Generator<{ end: number; next?: { at: number; taken: number } }> {
    const stages = this.#stages;
    for (let after = at + 1; after < stages.length; after++) {
      const isLeaving = this.#leaves[after]!;
      const next = { at: after, taken: isLeaving ? taken + 1 : taken };
      if (next.taken <= this.#count)
        for (const end of cutsBetween(stages[at]!.end, stages[after]!.begin)) yield { end, next };
      if (!isLeaving) return;
    }
    if (taken === this.#count) yield { end: stages.at(-1)!.end };
  }

  #mayHave({ at, begin, end }: Chosen): boolean {
    const { begin: held_begin, end: held_end } = this.#stages[at]!;
    return at !== this.#unchanged || (begin === held_begin && end === held_end);
  }
}

/** Before the attention of a layer, or where a stage begins or ends now. */
function cutsBetween(first: number, last: number): number[] {
  const cuts = [first];
  for (let cut = first + 1; cut < last; cut++) if (cut % 2 === 1) cuts.push(cut);
  if (last > first) cuts.push(last);
  return cuts;
}

/** What ranges of operators take on devices, in time and in memory. */
class OperatorCosts {
  readonly #factsOf: LeavingPipeline['factsOf'];
  readonly #stages: readonly RunningStage[];
  /** Up to each operator, on a device of pace 1. */
  readonly #work: number[] = [0];
  readonly #bytes: number[] = [0];
  /** Of the device of each stage: what an operator of a layer takes there. */
  readonly #paces: number[];

  constructor(stages: readonly RunningStage[], factsOf: LeavingPipeline['factsOf']) {
    this.#stages = stages;
    this.#factsOf = factsOf;
    const n_operators = stages.at(-1)!.end;
    const areMeasured = stages.every(({ compute_s = 0 }) => compute_s > 0);
    const areSized = stages.every(({ memory_bytes }) => memory_bytes !== undefined);
    const times = stages.map((stage) => operatorTimes(areMeasured ? stage : { ...stage, compute_s: 0 }));
    this.#paces = stages.map((stage, index) => paceOf(stage, times[index]!, n_operators));
    for (const [index, { begin, end, memory_bytes = 0 }] of stages.entries())
      for (let operator = begin; operator < end; operator++) {
        this.#work.push(this.#work.at(-1)! + times[index]![operator - begin]! / this.#paces[index]!);
        this.#bytes.push(this.#bytes.at(-1)! + (areSized ? memory_bytes / (end - begin) : 0));
      }
  }

  lacking_bytes(device: DeviceOfNode, { begin, end }: Chosen): number {
    const { room_bytes = Number.POSITIVE_INFINITY } = this.#factsOf(device);
    return Math.max(0, this.#bytes[end]! - this.#bytes[begin]! - room_bytes);
  }

  time(device: DeviceOfNode, { at, begin, end }: Chosen): number {
    return (this.#work[end]! - this.#work[begin]!) * this.#paces[this.#alike(device, at)]!;
  }

  /** A stage whose device is as fast. Of a device of which nothing is known that is the stage which goes there. */
  #alike(device: DeviceOfNode, at: number): number {
    const stage = this.#stages[at]!;
    if (device.node_index === stage.node_index && device.device === stage.device) return at;
    const { model } = this.#factsOf(device);
    const found = this.#stages.findIndex(
      (other) => model !== undefined && this.#factsOf(other).model === model,
    );
    return found < 0 ? at : found;
  }
}

/** Of each operator of a stage; 1 where nothing is known. */
function operatorTimes({ begin, end, compute_s = 0, operators_s }: RunningStage): number[] {
  const count = end - begin;
  if (compute_s > 0 && operators_s?.length === count && operators_s.every((seconds) => seconds > 0))
    return [...operators_s];
  return new Array<number>(count).fill(compute_s > 0 ? compute_s / count : 1);
}

/** Mean over the operators of layers: embedding and head take something else. */
function paceOf({ begin, end }: RunningStage, times: readonly number[], n_operators: number): number {
  const ofLayers = times.filter(
    (_, index) => end - begin <= 2 || (begin + index > 0 && begin + index < n_operators - 1),
  );
  return ofLayers.reduce((sum, seconds) => sum + seconds, 0) / ofLayers.length;
}
