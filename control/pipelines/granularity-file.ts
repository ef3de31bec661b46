/** How fine pipelines are, and why, as the keeper last saw them: `keeper/granularity.json`, for `status` and `top`. */
import { join } from 'node:path';
import { z } from 'zod';
import { makeFolders } from '../../host/make-folders.ts';
import { readJsonIfThere, writeFileAtomically } from '../../host/whole-file.ts';
import { keeperFiles, type StateLayout } from '../../spec/state-layout.ts';

const seenPipelineSchema = z.object({
  deployment: z.string(),
  unit: z.string(),
  model: z.string(),
  stages: z.int(),
  stages_min: z.int(),
  stages_max: z.int(),
  /** When somebody looked last, Unix ms; what was seen then. */
  looked_ms: z.number(),
  rate_per_s: z.number(),
  cv: z.number(),
  gradient_per_s2: z.number(),
  waiting: z.number(),
  /** The stage whose queue stands out most; absent: none does. */
  congested_stage: z.int().optional(),
  /** Since when answers stall, Unix ms; absent: they do not. */
  stalled_ms: z.number().optional(),
  /** Why it is as it is, or is to change. */
  because: z.string(),
  /** Number of stages that it is getting. */
  changing_to: z.int().optional(),
  /** The last change, and what came of it. */
  last: z
    .object({
      at_ms: z.number(),
      from: z.int(),
      to: z.int(),
      because: z.string(),
      refused: z.string().optional(),
    })
    .optional(),
});
export type SeenPipeline = z.infer<typeof seenPipelineSchema>;

const fileSchema = z.object({ format: z.literal(1), pipelines: z.array(seenPipelineSchema) });

const pathOf = ({ keeper_folder }: StateLayout): string => join(keeper_folder, keeperFiles.granularity);

/** A damaged file is as none: it is written again with the keeper's next look. */
export function readGranularityFile(layout: StateLayout): SeenPipeline[] {
  try {
    return fileSchema.safeParse(readJsonIfThere(pathOf(layout))).data?.pipelines ?? [];
  } catch (error) {
    if (error instanceof SyntaxError) return [];
    throw error;
  }
}

export function writeGranularityFile(layout: StateLayout, pipelines: readonly SeenPipeline[]): void {
  makeFolders(layout.keeper_folder);
  writeFileAtomically(pathOf(layout), `${JSON.stringify({ format: 1, pipelines })}\n`);
}
