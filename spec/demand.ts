/**
 * What gateways are asked for right now, for whoever decides how many replicas there are: a `demand.json` in each
 * gateway's folder, written within a second of a request. `spec/workload.ts` has the slower means that plans are made
 * for.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { listGatewayFolders } from './gateway-folders.ts';
import { gatewayFiles } from './state-layout.ts';

const measuredDemandSchema = z.object({
  /** Served name, or the name asked for where nobody serves it. */
  model: z.string(),
  /** Sum over all requests so far of the seconds they were in the gateway, those that wait included. */
  request_s: z.number().min(0),
  in_flight: z.int().min(0),
  /** When it was last asked, Unix ms. */
  asked_ms: z.number(),
  /** Measured mean time to first token; absent where nothing was streamed yet. */
  ttft_ms: z.number().optional(),
  /**
   * How long answers took: so many so far, and of the last ones when they ended, Unix ms, and what a pass of theirs
   * took, ms (`pass_ms`). Gateways of earlier versions do not say.
   */
  answers: z.object({ total: z.int().min(0), last: z.array(z.tuple([z.number(), z.number()])) }).optional(),
  /** How requests come: `ArrivalStatistics` of the solver. Gateways of earlier versions do not say. */
  arrivals: z
    .object({
      windows: z.array(
        z.object({ window_ms: z.number(), gaps: z.number(), cv: z.number(), rate_per_s: z.number() }),
      ),
      rate_per_s: z.number(),
      rate_peak_per_s: z.number(),
      peak_seen: z.boolean(),
      cv: z.number(),
      gradient_per_s2: z.number(),
    })
    .optional(),
});
export type MeasuredDemand = z.infer<typeof measuredDemandSchema>;

export const demandFileSchema = z.object({
  format: z.literal(1),
  /** Of the gateway: sums start again with it. */
  started_ms: z.number(),
  measured_ms: z.number(),
  models: z.array(measuredDemandSchema),
});
export type DemandFile = z.infer<typeof demandFileSchema>;

/** By gateway number; a file that cannot be read is as if it were not there. */
export function readDemand(root: string): Map<number, DemandFile> {
  const files = new Map<number, DemandFile>();
  for (const { number, folder } of listGatewayFolders(root)) {
    try {
      const json: unknown = JSON.parse(readFileSync(join(folder, gatewayFiles.demand), 'utf8'));
      const parsed = demandFileSchema.safeParse(json);
      if (parsed.success) files.set(number, parsed.data);
    } catch (error) {
      if (!(error instanceof SyntaxError) && (error as NodeJS.ErrnoException).code === undefined) throw error;
    }
  }
  return files;
}
