/** What the gateways of a site measured, as plans take it. */
import type { PlannedWorkload } from '../../spec/plan.ts';
import { readMeasuredWorkload } from '../../spec/workload.ts';

/** Fewer answers say too little of lengths. */
const requests_enough = 20;
/** A model that nobody asks at the moment is planned for at least this rate: it has to answer when somebody does. */
const rate_min_per_s = 0.01;

/** @param root `StateLayout.root` of the site */
export function measuredWorkloads(root: string): Map<string, PlannedWorkload> {
  return new Map(
    [...readMeasuredWorkload(root)]
      .filter(([, { requests }]) => requests >= requests_enough)
      .map(([model, { rate_per_s, input_tokens, output_tokens }]) => [
        model,
        {
          rate_per_s: Math.max(rate_min_per_s, rate_per_s),
          input_tokens: Math.max(1, input_tokens),
          output_tokens: Math.max(1, output_tokens),
          source: 'measured' as const,
        },
      ]),
  );
}
