import { z } from 'zod';
import { limits } from './wire.ts';

const body_mib_max = limits.body_bytes / 2 ** 20;

/** Of a site config's `gateway`: how much of its memory bodies of requests may take. See docs/gateway.md. */
export const bodySettings = {
  body_mib_max: z
    .int()
    .min(1)
    .max(body_mib_max)
    .default(body_mib_max)
    .describe(
      'Largest body of a request, in MiB. Lower: less memory and time for one request; higher: more and larger images in one.',
    ),
  bodies_gb_max: z
    .number()
    .positive()
    .optional()
    .describe(
      'What the bodies of all requests that are being answered may take of the gateway’s memory, in GB; beyond it large ones wait and are then refused with 503. Default: a quarter of memory_gb. Lower: safer; higher: more large requests at a time.',
    ),
  bodies_key_share_max: z
    .number()
    .gt(0)
    .max(1)
    .default(0.25)
    .describe(
      'The share of it that one key may have. Lower: keys get in each other’s way less; higher: one alone gets more done.',
    ),
  body_wait_s: z
    .number()
    .min(0)
    .max(60)
    .default(5)
    .describe(
      'Seconds that a request waits for memory for its body. Lower: told sooner to come back; higher: bursts are outlived.',
    ),
};
