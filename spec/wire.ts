/** Names on the wire between client, gateway and agent. OpenAI paths travel unchanged. */

/** Paths every session answers on its TLS port; OpenAI's own paths beside them. */
export const agentPaths = {
  state: '/hpcserve/v1/state',
  watch: '/hpcserve/v1/watch',
  drain: '/hpcserve/v1/drain',
  /** Of a device worker's session: a `DeviceReport`. */
  device: '/hpcserve/v1/device',
  /** Of a wrapped engine's session: a `SleepReport`; null where it never sleeps. */
  sleep: '/hpcserve/v1/sleep',
  /** The same: what of it others need to know to place requests, a `SharedDeviceView`. */
  sharing: '/hpcserve/v1/sharing',
  /** The same: a `MoveAway`, by which the requests of a model go on elsewhere and its instance rests. */
  move: '/hpcserve/v1/move',
  /** The same: a `RefactorRequest`, by which a pipeline whose coordinator it is gets other stages while it answers. */
  refactor: '/hpcserve/v1/refactor',
  /** Of a wrapped engine's session, for POST: the text of `tokens`, as the engine's own path for it answers. */
  detokenize: '/hpcserve/v1/detokenize',
  /** The same: which of the tensors that are asked for it has in memory; below it, ranges of one of them. */
  tensors: '/hpcserve/v1/tensors',
  /** Of a device worker's session, for agents of the same provider, by POST: what is said of KV that moves. */
  kv: '/hpcserve/v1/kv',
  /** Of a node agent's session, for agents of the same launch: below it, unit and stage; an upgrade to frames. */
  stages: '/hpcserve/v1/stages',
  /** The same: an upgrade to what agents say of stages that change, by lines of JSON. */
  stage_changes: '/hpcserve/v1/stage-changes',
} as const;

/** Paths of clients that are not OpenAI's, by vLLM's names: a model's tokens of a text, and the text of tokens. */
export const clientPaths = { tokenize: '/tokenize', detokenize: '/detokenize' } as const;

export const headers = {
  /**
   * Served name the gateway resolved, so that an agent need not parse the body; on answers: the model that answered.
   */
  model: 'x-hpcserve-model',
  request_id: 'x-request-id',
  /** Of a dashboard with a session: the secret of the page, without which the session's cookie is good for nothing. */
  page: 'x-hpcserve-page',
  /** The registry's code of an error that the gateway itself answers with. */
  error_code: 'x-hpcserve-error',
  /** On answers: who computed it. */
  node: 'x-hpcserve-node',
  engine: 'x-hpcserve-engine',
  session: 'x-hpcserve-session',
  precision: 'x-hpcserve-precision',
  device: 'x-hpcserve-device',
  provider: 'x-hpcserve-provider',
  /** Fingerprint of the key that proves it, or `unproven`: the other is a label. */
  provider_key: 'x-hpcserve-provider-key',
  site: 'x-hpcserve-site',
  /** On answers of native replicas: what of the request was taken and is without effect. */
  warning: 'x-hpcserve-warning',
  /** Asked in a request: quality of service, and the providers it trusts; see docs/gateway.md. */
  qos: 'x-hpcserve-qos',
  providers: 'x-hpcserve-providers',
  /** Asked in a request: `counts`, and the ledger keeps of it what it adds to sums, and nothing else. */
  usage: 'x-hpcserve-usage',
  /** Whose prompts this one may meet in a prefix cache: requests of the same scope. Absent: those that have none. */
  cache_scope: 'x-hpcserve-cache-scope',
  /** `1`: a native replica whose batch is full refuses at once (`E_WORKER_BUSY`) and lets the request not wait. */
  at_once: 'x-hpcserve-at-once',
  /** `1`: the rest of an answer that another replica began; it is not refused for what is promised to others. */
  continues: 'x-hpcserve-continues',
  /**
   * `1` asks a native replica for the token ids of every chunk, in `hpcserve_token_ids`; the gateway removes them
   * again.
   */
  token_ids: 'x-hpcserve-token-ids',
  /**
   * `1` asks a native replica where the time went; on answers, `WorkerTimings`: a field of those that come whole, of
   * streams a trailer. Clients do not see it.
   */
  timings: 'x-hpcserve-timings',
  /** Between an agent and its worker: the session of the peer that asks, which its connection proved. */
  peer: 'x-hpcserve-peer',
  /** `1`: the answer comes whole, and who asks has it computed elsewhere where it has moved. */
  may_move: 'x-hpcserve-may-move',
  /** Of a request whose keys and values have come before it: what they are called; see `MovedAnswer.kv`. */
  arrived_kv: 'x-hpcserve-arrived-kv',
  /** Of an answer that has moved: a `MovedAnswer`; clients do not see it. */
  moved: 'x-hpcserve-moved',
  /** Of a native replica that refuses a request for its SLO: a `RefusedRequest`; clients do not see it. */
  refused: 'x-hpcserve-refused',
} as const;

/**
 * Members that a native replica adds to answers when asked with `headers.token_ids`, and the parameter with
 * which another replica continues such an answer. In a chunk they stand at its end, behind OpenAI's own, and
 * `token_ids` is the last. To continue: send the same body with the `seed` of the first chunk, and as
 * `continue` a `ContinueRequest`.
 */
export const continuation = {
  /** In every chunk: all ids taken since the chunk before; their text is out as far as it can be. */
  token_ids: 'hpcserve_token_ids',
  /** Which choice the ids belong to; absent: 0. */
  choice: 'hpcserve_choice',
  /** `true` in the chunk that ends a choice. */
  finished: 'hpcserve_finished',
  /** Of all ids so far, how many at the end have log probabilities that are not out yet; absent: 0. */
  withheld: 'hpcserve_withheld',
  /** In the first chunk. */
  prompt_tokens: 'hpcserve_prompt_tokens',
  /** In the first chunk: the seed that was given, or chosen. */
  seed: 'hpcserve_seed',
  /** In the first chunk: when the prompt was rendered, Unix ms; chat templates may write the date. */
  rendered_ms: 'hpcserve_rendered_ms',
  /** In the first chunk: a hash of the prompt's token ids. */
  prompt_digest: 'hpcserve_prompt_digest',
  /** In the first chunk: prompt tokens that came from a cache. */
  cached_tokens: 'hpcserve_cached_tokens',
  /** In a request. */
  continue: 'hpcserve_continue',
  /** In the error event that ends a stream here: a `MovedAnswer`. */
  moved: 'hpcserve_moved',
  /** In the error of a whole answer that is given away here: a `BegunAnswer`. */
  begun: 'hpcserve_begun',
} as const;

/** Where an answer goes on that a replica has given away, with keys and values of what there is of it. */
export interface MovedAnswer {
  /** The session to ask. */
  session: string;
  /** What the keys and values are called there. */
  kv: string;
}

/** One choice of an answer that is continued. */
export interface ContinuedChoice {
  /** Tokens so far. */
  token_ids: number[];
  /** Its first chunk (the role) is out. */
  opened?: boolean;
  /** Its last chunk (the finish reason) is out: it only counts for usage. */
  finished?: boolean;
  /** As in chunks. */
  withheld?: number;
}

/** Value of `continuation.continue`. */
export interface ContinueRequest {
  /** Short for `choices` with one that is opened. */
  token_ids?: number[];
  /** One entry a choice, in the order of their index. */
  choices?: ContinuedChoice[];
  /** Tokens of the prompt as they were; absent: the prompt is made again from the request. */
  prompt_token_ids?: number[];
  rendered_ms?: number;
  /** The request is refused where its prompt has another digest. */
  prompt_digest?: string;
  cached_tokens?: number;
  /** What its keys and values are called here, where they came before the request: see `MovedAnswer`. */
  kv?: string;
  /** `id` and `created` of the answer's chunks. */
  id?: string;
  created?: number;
}

/**
 * What a native replica had of an answer that was to come whole: the same body with these two members, sent to another
 * one, brings the whole answer.
 */
export interface BegunAnswer {
  seed: number;
  continue: ContinueRequest;
}

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
