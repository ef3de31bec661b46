/**
 * Pipelines of one model from coarse to fine whose cuts are nested: every cut of a coarser pipeline is one of the
 * finer. Refining then splits stages and consolidating merges whole ones, and what stays on a device is not loaded
 * again (FlexPipe §5 and Fig. 7). The finest is cut first, by Eq. 2, and each coarser one is the best merge of the
 * next finer.
 */
import { type ModelPartition, type NoPartition, type PartitionQuestion, partition } from './partition.ts';

/** FlexPipe decides over 2 to 32 stages. */
const stage_counts_default: readonly number[] = [2, 4, 8, 16, 32];

export interface NestedPartitions {
  /** Those that are possible, the coarsest first. */
  pipelines: readonly ModelPartition[];
  /** The others, and why. */
  impossible: readonly (NoPartition & { stages: number })[];
}

/** @param counts numbers of stages, in any order */
export function nestedPartitions(
  question: Omit<PartitionQuestion, 'stages' | 'cuts'>,
  counts: readonly number[] = stage_counts_default,
): NestedPartitions {
  const pipelines: ModelPartition[] = [];
  const impossible: NestedPartitions['impossible'][number][] = [];
  let cuts: number[] | undefined;
  for (const stages of [...counts].sort((a, b) => b - a)) {
    const found = partition(cuts === undefined ? { ...question, stages } : { ...question, stages, cuts });
    if (!found.feasible) {
      impossible.push({ ...found, stages });
      continue;
    }
    pipelines.unshift(found);
    cuts = cutsOf(found);
  }
  return { pipelines, impossible };
}

/**
 * The best pipeline of so many stages that has the cuts of another, where that is coarser, or else only cuts of it: its
 * stages are split, or merged.
 */
export function nestedWith(
  question: PartitionQuestion,
  cuts: readonly number[],
): ModelPartition | NoPartition {
  return partition(question.stages > cuts.length ? { ...question, keep: cuts } : { ...question, cuts });
}

/** Operators before which a stage begins, but for the first. */
export function cutsOf({ stages }: ModelPartition): number[] {
  return stages.slice(1).map(({ begin }) => begin);
}
