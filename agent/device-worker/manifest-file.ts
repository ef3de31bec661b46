/**
 * What a worker had in its pool when it was told to go, and how likely each model was asked for next: its successor, on
 * whatever node, brings the host cache of that node into the same state, the likeliest first (`warmCache`). One small
 * file for all workers that serve the same models of a deployment; who writes last is who knows best.
 */
import { readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { z } from 'zod';
import { type ManifestModel, manifest_ranges_max } from '../memory/pool-manifest.ts';
import { writeKeptFile } from './kept-file.ts';

/** Models of a manifest, at most. Lower: smaller files; higher: more of a long tail comes back. */
const models_max = 256;
/** Larger files are none of ours. */
const file_bytes_max = 16 * 1024 * 1024;
/** Manifests of one deployment, at most: of other mixes of models that it once had, the oldest go. */
const files_max = 32;

const rangeSchema = z.object({ offset_bytes: z.int().min(0), size_bytes: z.int().min(1) });
const modelSchema = z.object({
  path: z.string(),
  version: z.string(),
  probability: z.number().min(0).max(1),
  ranges: z.array(rangeSchema).max(manifest_ranges_max),
});
const manifestSchema = z.object({ format: z.literal(1), models: z.array(modelSchema).max(models_max) });

/** Replaces the manifest, whole or not at all. @throws where the folder cannot be written */
export function writeManifest(file: string, models: readonly ManifestModel[]): void {
  const likeliest = [...models].sort((a, b) => b.probability - a.probability).slice(0, models_max);
  writeKeptFile(file, { format: 1, models: likeliest } satisfies z.infer<typeof manifestSchema>);
  const folder = dirname(file);
  const others = readdirSync(folder)
    .filter((name) => name.endsWith('.json'))
    .map((name) => join(folder, name))
    .map((path) => ({ path, at_ms: statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0 }))
    .sort((a, b) => b.at_ms - a.at_ms);
  for (const { path } of others.slice(files_max)) rmSync(path, { force: true });
}

/**
 * The likeliest model first; none where there is no manifest, or one that cannot be read or understood: it only makes a
 * start faster, and workers of other nodes replace it while it is read.
 */
export function readManifest(file: string): ManifestModel[] {
  try {
    if (statSync(file).size > file_bytes_max) return [];
    return manifestSchema.parse(JSON.parse(readFileSync(file, 'utf8'))).models;
  } catch {
    return []; // as said above
  }
}
