/**
 * What the gateways of a site measure of the load: ⟨λ, μ_in, μ_out⟩ of LLMFabric §3.3 with their spread. Each
 * gateway keeps a `workload.json` in its folder; whoever plans reads them all with `readMeasuredWorkload`.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { listGatewayFolders } from './gateway-folders.ts';
import { gatewayFiles } from './state-layout.ts';

/** Gateways write at least this often, also without requests: an older file is of one that ended. */
export const workloadWrite_ms = 10_000;
/** A file so much older than the newest one is of a gateway that ended: its clients are with the others now. */
const ended_ms = 6 * workloadWrite_ms;

const amount = z.number().min(0);
const measuredSchema = z.object({
  /** Served name of the model that answered; the name asked for where nobody did. */
  model: z.string(),
  /** Requests a second that arrived, those included that were refused for want of room. */
  rate_per_s: amount,
  /** Of `rate_per_s`, what was refused for want of room: clients come again with them, so they count repeatedly. */
  refused_per_s: amount,
  /** Mean lengths of answered requests, in tokens as the replicas count them. */
  input_tokens: amount,
  output_tokens: amount,
  /** Coefficients of variation of the lengths: standard deviation / mean. */
  input_cv: amount,
  output_cv: amount,
  /** Answered requests that the lengths were measured on, since the gateway's first start. */
  requests: amount,
  /** Time constant of the exponential weights: a request counts e⁻¹ of its weight after so long. */
  window_s: amount,
  measured_at_ms: amount,
});
export type MeasuredWorkload = z.infer<typeof measuredSchema>;

/** Requests of one model that are alike: reasoning makes answers many times as long. */
const classSchema = measuredSchema.extend({ reasoning: z.boolean() });
export type WorkloadClass = z.infer<typeof classSchema>;

/** `workload.json`. What the gateway adds, to go on from after a restart, is its own. */
export const workloadFileSchema = z.object({
  format: z.literal(1),
  measured_at_ms: amount,
  classes: z.array(classSchema),
});
export type WorkloadFile = z.infer<typeof workloadFileSchema>;

/** The load of one model on all gateways of the site. */
export interface SiteWorkload extends MeasuredWorkload {
  /** The same, requests with and without reasoning apart; one of them where all were alike. */
  classes: WorkloadClass[];
}

/**
 * What was measured, by model; models of which no request was answered are left out. A file that cannot be read is
 * as if it were not there, since a plan must not fail for it.
 *
 * @param root `StateLayout.root` of the site
 */
export function readMeasuredWorkload(root: string): Map<string, SiteWorkload> {
  return combineWorkloads(
    listGatewayFolders(root).flatMap(({ folder }) => {
      try {
        const json: unknown = JSON.parse(readFileSync(join(folder, gatewayFiles.workload), 'utf8'));
        const parsed = workloadFileSchema.safeParse(json);
        return parsed.success ? [parsed.data] : [];
      } catch (error) {
        if (error instanceof SyntaxError || (error as NodeJS.ErrnoException).code !== undefined) return [];
        throw error;
      }
    }),
  );
}

/** Sums over the gateways whose files belong together; see `readMeasuredWorkload`. */
export function combineWorkloads(files: readonly WorkloadFile[]): Map<string, SiteWorkload> {
  const newest_ms = Math.max(...files.map((file) => file.measured_at_ms));
  const live = files.filter((file) => newest_ms - file.measured_at_ms <= ended_ms);
  const byModel = new Map<string, WorkloadClass[]>();
  for (const entry of live.flatMap((file) => file.classes)) {
    if (entry.requests === 0) continue;
    byModel.set(entry.model, [...(byModel.get(entry.model) ?? []), entry]);
  }
  return new Map(
    [...byModel].map(([model, entries]) => {
      const classes = [false, true].flatMap((reasoning) => {
        const alike = entries.filter((entry) => entry.reasoning === reasoning);
        return alike.length === 0 ? [] : [{ ...combine(alike), reasoning }];
      });
      return [model, { ...combine(classes), classes }];
    }),
  );
}

/** Rates add up; lengths are those of a request taken at random. */
function combine(parts: readonly MeasuredWorkload[]): MeasuredWorkload {
  const answered = (part: MeasuredWorkload): number => part.rate_per_s - part.refused_per_s;
  // With no load left the rates say nothing of who had how much of it: the counts do.
  const byRate = parts.some((part) => answered(part) > 0);
  const weights = parts.map((part) => (byRate ? Math.max(0, answered(part)) : part.requests));
  const total = sum(weights);
  const mixture = (length: 'input' | 'output'): { mean: number; cv: number } => {
    const mean = sum(parts.map((part, index) => (weights[index]! / total) * part[`${length}_tokens`]));
    // E[X²] of one part is mean² (1 + cv²).
    const square = sum(
      parts.map(
        (part, index) =>
          (weights[index]! / total) * part[`${length}_tokens`] ** 2 * (1 + part[`${length}_cv`] ** 2),
      ),
    );
    return { mean, cv: mean > 0 ? Math.sqrt(Math.max(0, square / mean ** 2 - 1)) : 0 };
  };
  const input = mixture('input');
  const output = mixture('output');
  return {
    model: parts[0]!.model,
    rate_per_s: sum(parts.map((part) => part.rate_per_s)),
    refused_per_s: sum(parts.map((part) => part.refused_per_s)),
    input_tokens: input.mean,
    output_tokens: output.mean,
    input_cv: input.cv,
    output_cv: output.cv,
    requests: sum(parts.map((part) => part.requests)),
    window_s: Math.max(...parts.map((part) => part.window_s)),
    measured_at_ms: Math.max(...parts.map((part) => part.measured_at_ms)),
  };
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
