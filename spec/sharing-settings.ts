/**
 * How device workers share a device among models: `sharing:` of a site config, and what its launches carry to the
 * agents.
 */
import { z } from 'zod';

export const sharingSchema = z.strictObject({
  overestimate: z
    .number()
    .min(0)
    .max(2)
    .optional()
    .describe(
      'Share added to every estimated iteration before a request is let in. Default: 0.1. Higher: fewer broken promises and fewer requests let in.',
    ),
  kv_watermark: z
    .number()
    .min(0)
    .max(4)
    .optional()
    .describe(
      'KV set aside beyond what a model’s requests are expected to need, as a share of that. Default: 0.25. Higher: fewer resizes, more memory held.',
    ),
  keep_alive_s: z
    .number()
    .positive()
    .max(1e6)
    .optional()
    .describe(
      'Until a model that nobody asks for gives up its KV; its weights stay while there is room. Default: 300. Higher: prompts that begin alike are remembered longer.',
    ),
  pool_gb: z
    .number()
    .positive()
    .optional()
    .describe(
      'Memory pool of a device worker at most, in GB (10^9 bytes). Default: what the plan gave its job. Higher: tensors of idle models stay longer; what the device and the job leave beside programs is the limit in any case.',
    ),
  parking_dir: z
    .string()
    .min(1)
    .optional()
    .describe(
      'Folder on a disk of the node (`~` and `$NAME` as the job has them, such as $TMPDIR) where keys and values may wait of requests that gave way to others, beyond what host memory takes. Default: none. They are never on a filesystem that other nodes mount.',
    ),
  parking_gb: z
    .number()
    .positive()
    .optional()
    .describe(
      'What of parking_dir a device worker takes at most, in GB (10^9 bytes), and never more than half of what is free there. Default: 16. Higher: less is computed twice.',
    ),
  preemption: z
    .boolean()
    .optional()
    .describe(
      'Where a request is refused and a neighbour with fewer requests holds what it needs, whether that one’s streams move to another device that takes them. Default: true.',
    ),
  peer_loads: z
    .boolean()
    .optional()
    .describe(
      'Whether a node that loads a model fetches tensors from nodes of the site that have them in memory, beside reading its file. Default: true. They come over TLS and are compared with their SHA-256.',
    ),
  consolidation: z
    .boolean()
    .optional()
    .describe(
      'Where a model runs on two devices that others share, whether the streams of the smaller part move to the larger. Default: true.',
    ),
});
export type SiteSharing = z.infer<typeof sharingSchema>;
