/** How a deployment over several sites is divided: every site's part of it, as each of them remembers it. */
import { z } from 'zod';

const modelShareSchema = z.strictObject({
  name: z.string(),
  /** 0: none yet, of a model that follows demand. */
  replicas: z.int().min(0),
  /** Of the replicas, on stable nodes at least. */
  min_stable_replicas: z.int().min(0),
  /** What `hpcserve backfill` may run beyond them on idle nodes of this site. */
  scavenger_replicas: z.int().min(0),
  /** Of the model's requests, by the plan; above 0. */
  request_share: z.number().positive().max(1),
  /**
   * Of a model that follows demand: what a replica costs on the kinds of node here that can run it, in points of the
   * whole plan's objective. Sites compare by it.
   */
  costs: z.array(z.strictObject({ node_kind: z.string(), cost: z.number().positive() })).optional(),
});
export type ModelShare = z.infer<typeof modelShareSchema>;

const siteShareSchema = z.strictObject({
  site: z.string(),
  /** Models that have no replica here are not listed. */
  models: z.array(modelShareSchema),
  /** Of `budget.gpu_hours`. */
  gpu_hours: z.number().positive().optional(),
  /** Fingerprint of who runs the gateway there: whose word on demand counts as the site's. */
  provider_id: z
    .string()
    .regex(/^[0-9a-f]{32}$/)
    .optional(),
});
export type SiteShare = z.infer<typeof siteShareSchema>;

export const shareSchema = z.strictObject({
  /** SHA-256 over what was divided: with the same one, the division stands. */
  of: z.string(),
  /** In the order in which the sites were named; also those that got nothing. */
  sites: z.array(siteShareSchema).min(1),
});
export type Share = z.infer<typeof shareSchema>;
