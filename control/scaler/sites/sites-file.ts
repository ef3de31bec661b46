/** How models that follow demand over several sites stand, as their keeper last saw it: `keeper/sites.json`. */
import { join } from 'node:path';
import { z } from 'zod';
import { makeFolders } from '../../../host/make-folders.ts';
import { readJsonIfThere, writeFileAtomically } from '../../../host/whole-file.ts';
import { statedModelSchema } from '../../../spec/scaling-statement.ts';
import { keeperFiles, type StateLayout } from '../../../spec/state-layout.ts';

const heardSiteSchema = z.object({
  site: z.string(),
  /** See `LastHeard`. */
  at: z.number(),
  heard_ms: z.number(),
  said: statedModelSchema.optional(),
});

const sitesModelSchema = z.object({
  deployment: z.string(),
  of: z.string(),
  model: z.string(),
  /** Of the site itself. */
  claim: z.object({ replicas: z.int().min(0), published_ms: z.number().optional() }),
  own: statedModelSchema,
  heard: z.array(heardSiteSchema),
  /** When its own gateway was last seen to publish something new. */
  published: heardSiteSchema.omit({ site: true }),
  looked_ms: z.number(),
  /** What the last change here or elsewhere was for, and since when it is as it is. */
  because: z.string(),
  since_ms: z.number(),
  /** What the last division said, over the sites that counted. */
  divided: z.array(z.int()).optional(),
  /** Why nothing is decided now. */
  held: z.string().optional(),
  /** Why no further replica has a place here. */
  no_room: z.string().optional(),
  /** Sites that are done without. */
  silent: z.array(z.string()),
});
export type SitesModel = z.infer<typeof sitesModelSchema>;

const fileSchema = z.object({ format: z.literal(1), models: z.array(sitesModelSchema) });

const pathOf = ({ keeper_folder }: StateLayout): string => join(keeper_folder, keeperFiles.sites);

/** A damaged file is as none: the others are listened to anew before anything is decided. */
export function readSitesFile(layout: StateLayout): SitesModel[] {
  try {
    return fileSchema.safeParse(readJsonIfThere(pathOf(layout))).data?.models ?? [];
  } catch (error) {
    if (error instanceof SyntaxError) return [];
    throw error;
  }
}

export function writeSitesFile(layout: StateLayout, models: readonly SitesModel[]): void {
  makeFolders(layout.keeper_folder);
  writeFileAtomically(pathOf(layout), `${JSON.stringify({ format: 1, models })}\n`);
}
