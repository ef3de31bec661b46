/**
 * How many replicas of each model go to each node kind: the assignment problem of docs/solver.md, with node
 * kinds as types and one unit of traffic a replica. Devices are counted, not packed; whether the replicas fit
 * node by node is seen when they are placed.
 */
import type { PlacementQuestion } from '../../spec/plan.ts';
import type { AssignmentOption, AssignmentProblem } from '../assignment/problem.ts';
import { solveAssignment } from '../assignment/solve.ts';
import type { ReplicaCost } from './cost.ts';
import { onRealGpu } from './engine-choice.ts';
import type { PlacementOption } from './options.ts';

/** Replicas to place by option; what is not here gets none. */
export type Quotas = Map<PlacementOption, number>;

export interface ModelOptions {
  name: string;
  replicas: number;
  /** Feasible options, at most one a node kind. */
  options: readonly PlacementOption[];
  /** Replicas of each option, in their order, where a person asked for a mix. */
  mix?: readonly number[];
}

/** Above so many replicas of a model, options by number of replicas are too many to list. */
const replicas_max = 128;
/** Nodes of a search at most: planning answers at once, with a good choice where not the best. */
const nodes_max = 20_000;

/** Devices of a node a replica keeps others from using: its own, or its share of cores or host memory. */
export function devicesTaken(option: PlacementOption, question: PlacementQuestion): number {
  const { offer } = option;
  const { count } = offer.devices;
  const byCpus = (count * option.threads) / offer.cpus;
  const host = offer.memory_bytes - question.settings.host_overhead_bytes;
  const byMemory = onRealGpu(offer)
    ? 0
    : (count * option.memory.bytes_per_device * option.device_count) / Math.max(1, host);
  return Math.max(option.device_count, byCpus, byMemory);
}

/** The problem, and the option behind each of its options; undefined where it is too large to list. */
export function assignmentOf(
  models: readonly ModelOptions[],
  question: PlacementQuestion,
  costOf: ReplicaCost,
): { problem: AssignmentProblem; behind: PlacementOption[][] } | undefined {
  if (models.some(({ replicas }) => replicas > replicas_max)) return undefined;
  const kinds = question.node_kinds;
  const behind: PlacementOption[][] = [];
  const options = models.map(({ options, replicas, mix }) => {
    const all: AssignmentOption[] = [];
    const from: PlacementOption[] = [];
    options.forEach((option, at) => {
      const taken = devicesTaken(option, question);
      const numbers = mix ? [mix[at]!] : Array.from({ length: replicas }, (_, index) => index + 1);
      for (const share of numbers) {
        if (share === 0) continue;
        all.push({
          type: kinds.indexOf(option.offer),
          devices: Math.ceil(share * taken - 1e-9),
          share,
          cost: costOf(option, share, question),
        });
        from.push(option);
      }
    });
    behind.push(from);
    return all;
  });
  const problem = {
    counts: kinds.map((kind) => kind.nodes_total * kind.devices.count),
    shares: models.map(({ replicas }) => replicas),
    options,
  };
  return { problem, behind };
}

/** Undefined where devices do not suffice without sharing, or the problem is too large. */
export function chooseQuotas(
  models: readonly ModelOptions[],
  question: PlacementQuestion,
  costOf: ReplicaCost,
): Quotas | undefined {
  const asked = assignmentOf(models, question, costOf);
  if (asked === undefined) return undefined;
  const { choice } = solveAssignment(asked.problem, { nodes_max });
  if (choice === undefined) return undefined;
  const quotas: Quotas = new Map();
  choice.forEach((indices, model) => {
    for (const index of indices)
      quotas.set(asked.behind[model]![index]!, asked.problem.options[model]![index]!.share);
  });
  return quotas;
}
