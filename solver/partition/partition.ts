/**
 * Where to cut a model (FlexPipe Eq. 2): stages S_1 … S_K, contiguous ranges of its operators, that minimise
 *
 *   Σ_k | t_c(S_k) / speed_k + s_p(S_k) / B − C |  +  λ Σ_k R(S_k)
 *
 * with every stage in the memory of its device. Solved exactly by dynamic programming over (operators that lie in
 * stages, devices of each kind that are used); of partitions with the same sum, the one with the fastest slowest
 * stage.
 *
 * R is 1 for a stage that ends within a layer, else 0: later merges and replicas then move whole blocks.
 */
import { describeOperator, endsBlock, type OperatorCost } from './operator-graph.ts';

/** Devices that are alike. */
export interface StageDevices {
  kind: string;
  count: number;
  /** What weights and KV of a stage may take: activations and buffers are left out. */
  memory_bytes: number;
  /** Against the device of the profile: 2 computes an operator in half its time. */
  speed: number;
}

export interface PartitionQuestion {
  operators: readonly OperatorCost[];
  /** K. */
  stages: number;
  devices: readonly StageDevices[];
  /** B: bytes per second at which weights come to a stage. */
  link_bytes_per_s: number;
  /** Tokens whose keys and values each stage keeps for its layers. */
  kv_tokens?: number;
  /** C, the overlap cycle; absent: what a stage takes where all are even. */
  cycle_s?: number;
  /**
   * λ as a share of C, for a cut within a layer. Lower: even stages; higher: whole layers, at the cost of evenness.
   * Absent: `boundary_share_default`.
   */
  boundary_share?: number;
  /** Operators behind which a cut may lie, as the numbers of the ones after; absent: any. */
  cuts?: readonly number[];
  /** Of these cuts, the ones that there must be; absent: none. */
  keep?: readonly number[];
  /** Computation and loading of no stage take longer; absent: as long as they do. */
  stage_s_max?: number;
  /** Stages of a kind of device lie before those of the next kind; absent: in any order. */
  in_order?: boolean;
}

export const boundary_share_default = 0.1;

export interface PartitionStage {
  /** First and one-past-last operator. */
  begin: number;
  end: number;
  /** Kind of its device. */
  kind: string;
  /** On that device. */
  compute_s: number;
  weight_bytes: number;
  /** Weights and KV. */
  memory_bytes: number;
  /** What leaves it in one pass. */
  activation_bytes: number;
}

export interface ModelPartition {
  feasible: true;
  stages: readonly PartitionStage[];
  /** Value of Eq. 2. */
  objective_s: number;
  cycle_s: number;
  /** Computation of the slowest stage, which sets the pace. */
  slowest_s: number;
}

/** Which constraint no cut meets, and in which words. */
export interface NoPartition {
  feasible: false;
  constraint: 'stages' | 'devices' | 'operator_memory' | 'total_memory' | 'contiguous_memory';
  because: string;
}

export function partition(question: PartitionQuestion): ModelPartition | NoPartition {
  return whyImpossible(question) ?? new CutSearch(question).run();
}

/** Sums over ranges of operators, by differences of prefixes. */
class Prefixes {
  readonly compute_s: Float64Array;
  readonly weight_bytes: Float64Array;
  readonly memory_bytes: Float64Array;

  constructor(operators: readonly OperatorCost[], kv_tokens: number) {
    const sums = (of: (operator: OperatorCost) => number): Float64Array => {
      const prefix = new Float64Array(operators.length + 1);
      for (const [index, operator] of operators.entries()) prefix[index + 1] = prefix[index]! + of(operator);
      return prefix;
    };
    this.compute_s = sums((operator) => operator.compute_s);
    this.weight_bytes = sums((operator) => operator.weight_bytes);
    this.memory_bytes = sums((operator) => memoryOf_bytes(operator, kv_tokens));
  }
}

/** Parts of a cycle in which sums are compared, so that rounding errors do not tell equal ones apart. */
const cycle_parts = 2 ** 24;
const near = 2 / cycle_parts;

/** Dynamic program of one question; states are (devices used by kind, cut position). */
class CutSearch {
  readonly #question: PartitionQuestion;
  readonly #sums: Prefixes;
  /** Where cuts may lie, 0 and the end included. */
  readonly #positions: readonly number[];
  /** By position: where a stage that begins there ends at the latest, for a cut that must be there. */
  readonly #furthest: Int32Array;
  readonly #cycle_s: number;
  /** By position: sums up to there, loads among them in cycles; and what a cut there costs. */
  readonly #at: Record<'compute_s' | 'cycles' | 'memory_bytes' | 'cut_share', Float64Array>;
  /** Mixed radix of the counts by kind. */
  readonly #strides: number[] = [];
  readonly #usable: number[];
  readonly #states: number;
  /** By state and position: the sum of Eq. 2 in cycles, the slowest stage, and how it was reached. */
  readonly #cycles: Float64Array;
  readonly #slowest_s: Float64Array;
  readonly #from: Int32Array;
  readonly #kind: Int8Array;

  constructor(question: PartitionQuestion) {
    const { operators, devices, stages } = question;
    this.#question = question;
    this.#sums = new Prefixes(operators, question.kv_tokens ?? 0);
    const inner = question.cuts ?? operators.map((_, index) => index);
    this.#positions = [
      0,
      ...inner.filter((cut) => cut > 0 && cut < operators.length).sort((a, b) => a - b),
      operators.length,
    ];
    this.#furthest = this.#nextKept(question.keep ?? []);
    this.#cycle_s = question.cycle_s ?? evenCycle_s(question, this.#sums);
    const share = question.boundary_share ?? boundary_share_default;
    const atPositions = (of: (position: number) => number): Float64Array =>
      Float64Array.from(this.#positions, of);
    this.#at = {
      compute_s: atPositions((position) => this.#sums.compute_s[position]!),
      cycles: atPositions(
        (position) => this.#sums.weight_bytes[position]! / question.link_bytes_per_s / this.#cycle_s,
      ),
      memory_bytes: atPositions((position) => this.#sums.memory_bytes[position]!),
      cut_share: atPositions((position) =>
        position > 0 && !endsBlock(operators[position - 1]!) ? share : 0,
      ),
    };
    this.#usable = devices.map(({ count }) => Math.min(count, stages));
    let states = 1;
    for (const usable of this.#usable) {
      this.#strides.push(states);
      states *= usable + 1;
    }
    this.#states = states;
    const cells = states * this.#positions.length;
    this.#cycles = new Float64Array(cells).fill(Number.POSITIVE_INFINITY);
    this.#slowest_s = new Float64Array(cells).fill(Number.POSITIVE_INFINITY);
    this.#from = new Int32Array(cells).fill(-1);
    this.#kind = new Int8Array(cells);
    this.#cycles[0] = 0;
    this.#slowest_s[0] = 0;
  }

  run(): ModelPartition | NoPartition {
    const { stages } = this.#question;
    // A state is left after every state with fewer devices of each kind: its number is larger than theirs.
    for (let state = 0; state < this.#states; state++) {
      const used = this.#used(state);
      if (used < stages) this.#extend(state, stages - used - 1);
    }
    let best = -1;
    const last = this.#positions.length - 1;
    for (let state = 0; state < this.#states; state++) {
      const cell = state * this.#positions.length + last;
      if (this.#used(state) !== stages || this.#cycles[cell] === Number.POSITIVE_INFINITY) continue;
      if (best < 0 || this.#isBetter(this.#cycles[cell]!, this.#slowest_s[cell]!, best)) best = cell;
    }
    return best < 0 ? this.#nothingFits() : this.#trace(best);
  }

  #nextKept(keep: readonly number[]): Int32Array {
    const furthest = new Int32Array(this.#positions.length).fill(this.#positions.length - 1);
    for (let at = furthest.length - 2; at > 0; at--)
      furthest[at - 1] = keep.includes(this.#positions[at]!) ? at : furthest[at]!;
    return furthest;
  }

  #used(state: number): number {
    let used = 0;
    for (const [kind, stride] of this.#strides.entries()) used += this.#countOf(state, kind, stride);
    return used;
  }

  #countOf(state: number, kind: number, stride: number): number {
    return Math.floor(state / stride) % (this.#usable[kind]! + 1);
  }

  /** One more stage from every position that the state reaches; `left` more come after it. */
  #extend(state: number, left: number): void {
    const width = this.#positions.length;
    const { compute_s, cycles, memory_bytes, cut_share } = this.#at;
    const taken_max = (this.#question.stage_s_max ?? Number.POSITIVE_INFINITY) / this.#cycle_s;
    for (const [kind, stride] of this.#strides.entries()) {
      if (this.#countOf(state, kind, stride) === this.#usable[kind]) continue;
      // Strides grow: the state has devices of a later kind where it is past the last state of this one.
      if (this.#question.in_order === true && state >= stride * (this.#usable[kind]! + 1)) continue;
      const device = this.#question.devices[kind]!;
      for (let begin = 0; begin < width - 1 - left; begin++) {
        const cell = state * width + begin;
        const before = this.#cycles[cell]!;
        if (before === Number.POSITIVE_INFINITY) continue;
        const slowest_s = this.#slowest_s[cell]!;
        const last = Math.min(width - 1 - left, this.#furthest[begin]!);
        for (let end = left === 0 ? width - 1 : begin + 1; end <= last; end++) {
          if (memory_bytes[end]! - memory_bytes[begin]! > device.memory_bytes) break;
          const stage_s = (compute_s[end]! - compute_s[begin]!) / device.speed;
          const taken = stage_s / this.#cycle_s + cycles[end]! - cycles[begin]!;
          if (taken > taken_max) break;
          const off = Math.abs(taken - 1);
          const target = (state + stride) * width + end;
          const sum = before + off + cut_share[end]!;
          if (!this.#isBetter(sum, Math.max(slowest_s, stage_s), target)) continue;
          this.#cycles[target] = sum;
          this.#slowest_s[target] = Math.max(slowest_s, stage_s);
          this.#from[target] = cell;
          this.#kind[target] = kind;
        }
      }
    }
  }

  #isBetter(cycles: number, slowest_s: number, cell: number): boolean {
    const known = this.#cycles[cell]!;
    // Rounded only where they are near each other: most are not.
    if (cycles > known + near || cycles < known - near) return cycles < known;
    const difference = Math.round(cycles * cycle_parts) - Math.round(known * cycle_parts);
    return difference < 0 || (difference === 0 && slowest_s < this.#slowest_s[cell]!);
  }

  #trace(cell: number): ModelPartition {
    const { operators, devices } = this.#question;
    const width = this.#positions.length;
    const stages: PartitionStage[] = [];
    for (let at = cell; this.#from[at]! >= 0; at = this.#from[at]!) {
      const begin = this.#positions[this.#from[at]! % width]!;
      const end = this.#positions[at % width]!;
      const device = devices[this.#kind[at]!]!;
      stages.push({
        begin,
        end,
        kind: device.kind,
        compute_s: range(this.#sums.compute_s, begin, end) / device.speed,
        weight_bytes: range(this.#sums.weight_bytes, begin, end),
        memory_bytes: range(this.#sums.memory_bytes, begin, end),
        activation_bytes: operators[end - 1]!.activation_bytes,
      });
    }
    return {
      feasible: true,
      stages: stages.reverse(),
      objective_s: this.#cycles[cell]! * this.#cycle_s,
      cycle_s: this.#cycle_s,
      slowest_s: this.#slowest_s[cell]!,
    };
  }

  /** All memory together would do, and no contiguous ranges do. */
  #nothingFits(): NoPartition {
    const { operators, stages, devices, cuts } = this.#question;
    const largest = Math.max(...devices.map(({ memory_bytes }) => memory_bytes));
    let [piece, at] = [0, 0];
    for (let index = 1; index < this.#positions.length; index++) {
      const bytes = this.#at.memory_bytes[index]! - this.#at.memory_bytes[index - 1]!;
      if (bytes > piece) [piece, at] = [bytes, this.#positions[index - 1]!];
    }
    return {
      feasible: false,
      constraint: 'contiguous_memory',
      because: `no ${stages} contiguous ranges fit into the memory of their devices, the largest of which has ${gib(largest)}: ${cuts === undefined ? 'operators' : 'the ranges between the cuts that are allowed'} take up to ${gib(piece)} each (from ${describeOperator(operators[at]!)})`,
    };
  }
}

/** C where none is given: computation shared by speed, and weights evenly, over the K fastest devices. */
function evenCycle_s({ devices, stages, link_bytes_per_s }: PartitionQuestion, sums: Prefixes): number {
  const speeds = eachDevice(devices, ({ speed }) => speed).slice(0, stages);
  const speed = speeds.reduce((sum, value) => sum + value, 0);
  const cycle_s = sums.compute_s.at(-1)! / speed + sums.weight_bytes.at(-1)! / link_bytes_per_s / stages;
  return cycle_s > 0 ? cycle_s : 1;
}

/** What can be said before any cut is tried. */
function whyImpossible(question: PartitionQuestion): NoPartition | undefined {
  const { operators, stages, devices, kv_tokens = 0, cuts, keep = [] } = question;
  const no = (constraint: NoPartition['constraint'], because: string): NoPartition => ({
    feasible: false,
    constraint,
    because,
  });
  const ranges = cuts === undefined ? operators.length : cuts.length + 1;
  const kept = keep.length + 1;
  if (!Number.isInteger(stages) || stages < kept || stages > ranges)
    return no('stages', `${stages} stages are not possible: the model can be cut into ${kept} to ${ranges}`);
  const lost = cuts && keep.find((cut) => !cuts.includes(cut));
  if (lost !== undefined)
    return no(
      'stages',
      `the cut before ${describeOperator(operators[lost]!)} is to stay, and none may lie there`,
    );
  const count = devices.reduce((sum, device) => sum + device.count, 0);
  if (count < stages) return no('devices', `${stages} stages need as many devices, and there are ${count}`);
  const memories = eachDevice(devices, ({ memory_bytes }) => memory_bytes);
  const largest = memories[0] ?? 0;
  const tooLarge = operators.find((operator) => memoryOf_bytes(operator, kv_tokens) > largest);
  if (tooLarge !== undefined)
    return no(
      'operator_memory',
      `${describeOperator(tooLarge)} alone takes ${gib(memoryOf_bytes(tooLarge, kv_tokens))}, and the largest device has ${gib(largest)}`,
    );
  const needed = operators.reduce((sum, operator) => sum + memoryOf_bytes(operator, kv_tokens), 0);
  const there = memories.slice(0, stages).reduce((sum, bytes) => sum + bytes, 0);
  if (needed > there)
    return no(
      'total_memory',
      `weights and KV take ${gib(needed)}, and the ${stages} largest devices have ${gib(there)} in all`,
    );
  return undefined;
}

/** A value of every single device, the largest first. */
function eachDevice(devices: readonly StageDevices[], of: (device: StageDevices) => number): number[] {
  return devices.flatMap((device) => new Array<number>(device.count).fill(of(device))).sort((a, b) => b - a);
}

function memoryOf_bytes({ weight_bytes, kv_bytes_per_token }: OperatorCost, kv_tokens: number): number {
  return weight_bytes + kv_bytes_per_token * kv_tokens;
}

function range(prefix: Float64Array, begin: number, end: number): number {
  return prefix[end]! - prefix[begin]!;
}

function gib(bytes: number): string {
  return `${(bytes / 2 ** 30).toFixed(2)} GiB`;
}
