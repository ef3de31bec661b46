import { endsBlock } from '../../../solver/partition/operator-graph.ts';
import {
  boundary_share_default,
  type PartitionQuestion,
  type PartitionStage,
} from '../../../solver/partition/partition.ts';

export interface Value {
  objective_s: number;
  slowest_s: number;
}

/** Every way to cut and to give kinds of devices; the best, or undefined where none fits. */
export function bestByEnumeration(question: PartitionQuestion, cycle_s: number): Value | undefined {
  const { operators, devices, stages } = question;
  const allowed = question.cuts ?? operators.map((_, index) => index).slice(1);
  const left = devices.map(({ count }) => count);
  let best: Value | undefined;
  const visit = (begin: number, chosen: { begin: number; end: number; kind: number }[]): void => {
    if (chosen.length === stages) {
      if (begin !== operators.length) return;
      if (question.keep?.some((cut) => chosen.every((stage) => stage.begin !== cut))) return;
      const value = objectiveOf(question, cycle_s, chosen);
      if (value !== undefined && (best === undefined || isLess(value, best, cycle_s))) best = value;
      return;
    }
    for (const end of [...allowed, operators.length]) {
      if (end <= begin) continue;
      for (let kind = 0; kind < devices.length; kind++) {
        if (left[kind] === 0) continue;
        if (question.in_order === true && chosen.some((stage) => stage.kind > kind)) continue;
        left[kind]!--;
        visit(end, [...chosen, { begin, end, kind }]);
        left[kind]!++;
      }
    }
  };
  visit(0, []);
  return best;
}

/** Eq. 2 of stages as they were answered, from the operators alone. */
export function objectiveOf(
  question: PartitionQuestion,
  cycle_s: number,
  stages: readonly (Pick<PartitionStage, 'begin' | 'end'> & { kind: number })[],
): Value | undefined {
  const value = { objective_s: 0, slowest_s: 0 };
  for (const { begin, end, kind } of stages) {
    const own = question.operators.slice(begin, end);
    const { memory_bytes, speed } = question.devices[kind]!;
    const sum = (of: (operator: (typeof own)[number]) => number): number =>
      own.reduce((total, operator) => total + of(operator), 0);
    const weight_bytes = sum((operator) => operator.weight_bytes);
    const kv_bytes = sum((operator) => operator.kv_bytes_per_token) * (question.kv_tokens ?? 0);
    if (weight_bytes + kv_bytes > memory_bytes) return undefined;
    const compute_s = sum((operator) => operator.compute_s) / speed;
    const stage_s = compute_s + weight_bytes / question.link_bytes_per_s;
    if (stage_s > (question.stage_s_max ?? Number.POSITIVE_INFINITY)) return undefined;
    value.objective_s += Math.abs(compute_s + weight_bytes / question.link_bytes_per_s - cycle_s);
    if (!endsBlock(own.at(-1)!))
      value.objective_s += (question.boundary_share ?? boundary_share_default) * cycle_s;
    value.slowest_s = Math.max(value.slowest_s, compute_s);
  }
  return value;
}

function isLess(a: Value, b: Value, cycle_s: number): boolean {
  const equal = 1e-6 * cycle_s;
  if (Math.abs(a.objective_s - b.objective_s) > equal) return a.objective_s < b.objective_s;
  return a.slowest_s < b.slowest_s;
}
