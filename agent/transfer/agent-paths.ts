/** What a device worker asks its agent, on a unix socket of the agent's private folder, of peers that KV can go to. */
import { z } from 'zod';

/** Who there is; below it by session, for POST: a message to that peer, and its answer. */
export const kvPeerPath = '/kv-peers';

export const kvPeerListSchema = z.object({
  peers: z.array(
    z.object({
      session_id: z.string(),
      node: z.string(),
      /** An address of its node. */
      host: z.string(),
      same_node: z.boolean(),
      /** Names of the models that serve there, and of those the ones of which it is in the decode pool. */
      models: z.array(z.string()),
      decodes: z.array(z.string()),
    }),
  ),
});
export type KvPeerList = z.infer<typeof kvPeerListSchema>;
