/** Of a site config's `gateway`: what is kept for clients beside the ledger, and which web pages may ask. */
import { z } from 'zod';

export const keptFilesDefault_d = 30;
export const keptKeyDefault_gb = 2;

/** As a browser sends it (RFC 6454 §6.2). */
const origin = z
  .string()
  .regex(
    /^(\*|https?:\/\/[a-z0-9.-]+(:\d{1,5})?|https?:\/\/\[[0-9a-f:]+\](:\d{1,5})?)$/,
    'such as https://chat.example.org',
  );

export const clientSettings = {
  origins: z
    .array(origin)
    .default([])
    .describe(
      'Web pages that may ask with a key of their user, by their origin (https://chat.example.org); *: all. A key that is written into a page is everybody’s.',
    ),
  responses_kept_h: z
    .number()
    .min(0)
    .max(24 * 90)
    .default(0)
    .describe(
      'Hours for which answers of /v1/responses are kept, encrypted, for previous_response_id; 0: not at all. Requests with store: false never are.',
    ),
  files_kept_d: z
    .number()
    .min(0)
    .max(365)
    .default(keptFilesDefault_d)
    .describe('Days for which files and results of /v1/batches are kept, encrypted; 0: there are none.'),
  kept_key_gb_max: z
    .number()
    .positive()
    .default(keptKeyDefault_gb)
    .describe(
      'What may be kept of each of responses, files and batches for one key, in GB; beyond it the oldest go. Lower: less of the filesystem; higher: more is kept to its end.',
    ),
};
