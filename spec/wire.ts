/** Names on the wire between client, gateway and agent. OpenAI paths travel unchanged. */

/** Paths every session answers on its TLS port; OpenAI's own paths beside them. */
export const agentPaths = {
  state: '/hpcserve/v1/state',
  watch: '/hpcserve/v1/watch',
  drain: '/hpcserve/v1/drain',
} as const;

export const headers = {
  /** Served name the gateway resolved, so that an agent need not parse the body. */
  model: 'x-hpcserve-model',
  request_id: 'x-request-id',
  /** On answers: who computed it. */
  node: 'x-hpcserve-node',
  engine: 'x-hpcserve-engine',
  session: 'x-hpcserve-session',
  precision: 'x-hpcserve-precision',
  /** Asked in a request: quality of service, see docs/gateway.md. */
  qos: 'x-hpcserve-qos',
  /** `1` asks a native replica for the token ids of every chunk, in `hpcserve_token_ids`; the gateway removes them again. */
  token_ids: 'x-hpcserve-token-ids',
} as const;

/**
 * Members that a native replica adds to answers when asked with `headers.token_ids`, and the parameter with
 * which another replica continues such an answer. To continue: send the same body with the `seed` of the
 * first chunk, and as `continue` an object `{token_ids}` with all ids received, in order.
 */
export const continuation = {
  /** In every chunk: ids whose text is out with this chunk. */
  token_ids: 'hpcserve_token_ids',
  /** In the first chunk. */
  prompt_tokens: 'hpcserve_prompt_tokens',
  /** In the first chunk: the seed that was given, or chosen. */
  seed: 'hpcserve_seed',
  /** In a request: `{token_ids: number[], prompt_token_ids?: number[]}`. */
  continue: 'hpcserve_continue',
} as const;

/** TLS server name of a session: the port of a node is shared, the name picks the key. */
export function sessionServerName(sessionId: string): string {
  return `${sessionId}.session.hpcserve`;
}

export const limits = {
  /** Largest request body a gateway or agent reads. Lower: less memory at risk; higher: longer prompts and images. */
  body_bytes: 32 * 1024 * 1024,
  header_bytes: 32 * 1024,
  /** Requests that may wait at one gateway for a replica. */
  queue_length: 1024,
  connections: 4096,
} as const;

/** OpenAI's error envelope. */
export interface OpenAiError {
  error: { message: string; type: string; param: string | null; code: string | null };
}
