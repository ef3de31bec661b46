import { defineErrors } from './define.ts';

/** What can be wrong at the front door: requests, replicas, the gateway process itself, and its ledger. */
export const gatewayErrors = defineErrors({
  E_REQUEST_JSON: {
    cause: 'The body of a request is not valid JSON.',
    fix: 'send a JSON object as UTF-8, with `content-type: application/json`',
    http_status: 400,
    exit_code: 2,
  },
  E_REQUEST_INVALID: {
    cause: 'A field of a request is missing or has a wrong type.',
    fix: 'correct the field that the message names',
    http_status: 400,
    exit_code: 2,
  },
  E_NODE_UNKNOWN: {
    cause: 'No agent runs on the node that was named, as far as the gateway knows.',
    fix: 'name a node as `hpcserve nodes` lists it',
    http_status: 404,
    exit_code: 2,
  },
  E_NODE_DRAIN: {
    cause: 'The agent of a node was asked to give its running answers away and to end, and has not done so.',
    fix: 'wait, or end its job: `hpcserve stop DEPLOYMENT`, `scancel JOB`; the log of its agent says what holds it up',
    http_status: 502,
    exit_code: 12,
  },
  E_REQUEST_TOO_LARGE: {
    cause: 'The body of a request is larger than the gateway reads.',
    fix: 'send less: shorten the prompt, shrink images, or split the batch',
    http_status: 413,
    exit_code: 2,
  },
  E_GATEWAY_BODIES: {
    cause:
      'Bodies of requests that are being answered hold as much of the gateway’s memory as they may (`gateway.bodies_gb_max` of the site config).',
    fix: 'try again after the time that `retry-after` gives; send smaller bodies, or ask the operator for a gateway with more memory',
    http_status: 503,
    exit_code: 7,
  },
  E_KEY_BODIES: {
    cause:
      'Bodies of requests of one key that are being answered hold its share of the gateway’s memory (`gateway.bodies_key_share_max` of the site config).',
    fix: 'send fewer large requests at a time: the next one when an answer has come',
    http_status: 429,
    exit_code: 7,
  },
  E_KEY_WAITING: {
    cause:
      'Requests of one key that wait for a replica to start hold as many of the gateway’s places for that as one key may.',
    fix: 'try again after the time that `retry-after` gives, and send fewer requests at a time until the model serves',
    http_status: 429,
    exit_code: 7,
  },
  E_KEY_BATCHES: {
    cause: 'As many batches of one key run or wait at this gateway as one key may have there.',
    fix: 'send the next one when one of them has ended, put more requests into each, or cancel those that are not needed',
    http_status: 429,
    exit_code: 7,
  },
  E_KEY_QUESTIONS: {
    cause:
      'As many questions about usage of one key wait at this gateway as one key may have there, or as many of all keys as it takes.',
    fix: 'ask the next one when the one before is answered; ask for fewer dimensions or a shorter time where answers take long',
    http_status: 429,
    exit_code: 7,
  },
  E_GATEWAY_WAITING: {
    cause: 'As many requests wait at the gateway for replicas to start as it has places for that.',
    fix: 'try again after the time that `retry-after` gives, or ask another gateway of the site',
    http_status: 503,
    exit_code: 7,
  },
  E_REQUEST_MEDIA_TYPE: {
    cause:
      'The `content-type` of a request is another one than JSON, or its `content-encoding` another one than gzip.',
    fix: 'send the body as JSON with `content-type: application/json`, as it is or packed by gzip',
    http_status: 415,
    exit_code: 2,
  },
  E_REQUEST_HEADERS: {
    cause: 'The header of a request is larger than the gateway reads, or is not HTTP.',
    fix: 'send fewer or shorter header fields, and speak HTTP/1.1',
    http_status: 431,
    exit_code: 2,
  },
  E_REQUEST_MALFORMED: {
    cause: 'The bytes that arrived are not an HTTP/1.1 request.',
    fix: 'check that the base URL begins with the right scheme (http or https) and that no proxy alters requests',
    http_status: 400,
    exit_code: 2,
  },
  E_REQUEST_TIMEOUT: {
    cause: 'A client sent its request too slowly, or stopped in the middle of it.',
    fix: 'send the request again; check the network between client and gateway',
    http_status: 408,
    exit_code: 7,
  },
  E_REQUEST_PATH: {
    cause: 'The gateway has nothing at this path.',
    fix: 'use an OpenAI path such as /v1/chat/completions, and a base URL that ends in /v1',
    http_status: 404,
    exit_code: 9,
  },
  E_KEPT_UNKNOWN: {
    cause:
      'A response, file or batch is asked for that is not kept for this key: it was never made, belongs to another key, was deleted, or its time is over.',
    fix: 'use an id that this key was given, before the time is over that the site keeps it; or send what it held again',
    http_status: 404,
    exit_code: 9,
  },
  E_REQUEST_METHOD: {
    cause: 'The path exists, but not for this HTTP method.',
    fix: 'use the method that the `allow` header of the answer names',
    http_status: 405,
    exit_code: 2,
  },
  E_REQUEST_KEY: {
    cause: 'A request carries no API key, or one that is unknown or revoked.',
    fix: 'send `authorization: Bearer hsk-…` with a key that the operator of the gateway gave out',
    http_status: 401,
    exit_code: 12,
  },
  E_REQUEST_QOS: {
    cause: 'The quality of service that a request or a key asks for (`x-hpcserve-qos`) cannot be read.',
    fix: 'write terms as docs/gateway.md describes them: quantization>=8bit; devices=gpu; tier=stable; region=eu',
    http_status: 400,
    exit_code: 2,
  },
  E_REQUEST_PROVIDERS: {
    cause:
      'The trusted providers that a request (`x-hpcserve-providers`) or a key names cannot be read, or a name does not lead to one key.',
    fix: 'name them by fingerprint, or as user@site where one key alone bears that name, with commas between them; `hpcserve nodes` shows both',
    http_status: 400,
    exit_code: 2,
  },
  E_REQUEST_ADMIN: {
    cause: 'An administrative path was asked without the admin token of this gateway.',
    fix: "send `authorization: Bearer` with the content of admin.token in the gateway's folder",
    http_status: 401,
    exit_code: 12,
  },
  E_REFACTOR_REFUSED: {
    cause: 'A pipeline was to get other stages, and its agent refused or could not be reached.',
    fix: 'see the reason that the message gives and `hpcserve status NAME`; the pipeline serves with the stages it had',
    http_status: 409,
    exit_code: 8,
  },
  E_MODEL_UNKNOWN: {
    cause: 'No deployment behind this gateway serves a model of that name.',
    fix: 'use one of the names that GET /v1/models lists',
    http_status: 404,
    exit_code: 9,
  },
  E_MODEL_NO_REPLICA: {
    cause:
      'The model is deployed, but no replica of it can answer now: jobs pending, weights loading, or failed.',
    fix: 'try again after the time that `retry-after` gives; `hpcserve status` shows the jobs',
    http_status: 503,
    exit_code: 7,
  },
  E_MODEL_EXCLUDED: {
    cause: 'Replicas of the model exist, and the filters of the request or its key allow none of them.',
    fix: 'ask for less: the message says which filter excludes whom',
    http_status: 404,
    exit_code: 9,
  },
  E_REPLICA_BUSY: {
    cause:
      'Every replica of the model has as many requests waiting as it may hold, or the wait would be too long.',
    fix: 'try again after the time that `retry-after` gives, or deploy more replicas',
    http_status: 429,
    exit_code: 7,
  },
  E_REPLICA_FAILED: {
    cause: 'The replicas that were tried could not be reached or failed before they answered.',
    fix: 'try again; `hpcserve status` and `hpcserve logs` show what happened to the replica',
    http_status: 502,
    exit_code: 11,
  },
  E_REQUEST_STOPS_REPLICA: {
    cause:
      'A replica stopped while it worked on this request, before it had a word of the answer, and what is known points at the request; so it is given to no other.',
    fix: 'do not send it again as it is: leave out its schema, grammar, tools or unusual parameters, or shorten it, until it is answered; `hpcserve logs` shows what happened to the replica',
    http_status: 502,
    exit_code: 11,
  },
  E_REPLICA_BROKE_OFF: {
    cause: 'A replica ended in the middle of an answer.',
    fix: 'send the request again; `hpcserve logs` shows what happened to the replica',
    http_status: 502,
    exit_code: 11,
  },
  E_GATEWAY_DRAINING: {
    cause: 'The gateway is stopping and takes no new requests.',
    fix: 'try again in a few seconds',
    http_status: 503,
    exit_code: 7,
  },
  E_GATEWAY_RUNNING: {
    cause: 'Another gateway process holds the gateway folder.',
    fix: 'use that gateway, or stop it first',
    http_status: 409,
    exit_code: 10,
  },
  E_GATEWAY_PORT: {
    cause: 'The address or port that the gateway is to listen on cannot be had.',
    fix: 'choose another port or address in the site config, or port 0 for any free one',
    http_status: 500,
    exit_code: 12,
  },
  E_GATEWAY_CONFIG: {
    cause: 'The config file of the gateway is missing or wrong.',
    fix: 'correct the field that the message names; control writes this file as gateway.json',
    http_status: 500,
    exit_code: 3,
  },
  E_GATEWAY_FOLDER: {
    cause: 'A file in the gateway folder cannot be read or written.',
    fix: 'check that the filesystem is mounted, has space and quota, and that the folder is yours',
    http_status: 500,
    exit_code: 12,
  },
  E_GATEWAY_WORKER: {
    cause: 'A process that relays requests for the gateway does not start.',
    fix: 'read the lines before in gateway.log; with gateway.processes: 1 in the site config there is none',
    http_status: 500,
    exit_code: 12,
  },
  E_KEY_UNKNOWN: {
    cause: 'No API key has this id or name.',
    fix: 'list the keys with `hpcserve keys list`',
    http_status: 404,
    exit_code: 9,
  },
  E_KEY_MODEL: {
    cause: 'An API key may not be used for the model that is asked for.',
    fix: 'use one of the models that GET /v1/models lists for this key, or ask the operator of the gateway',
    http_status: 403,
    exit_code: 12,
  },
  E_KEY_SCOPE: {
    cause:
      'With an API key it was asked for another key that may do more, or for a change of what it may do itself; or one that was derived from another was to make, change or end keys beside itself.',
    fix: 'ask for what only narrows (models, providers, tiers, expiry), or ask the operator of the gateway',
    http_status: 403,
    exit_code: 12,
  },
  E_KEY_PROVIDERS: {
    cause:
      'An API key from before providers had keys trusts names alone, which any member of the mesh can bear.',
    fix: 'the operator of the gateway names the providers anew: hpcserve keys set ID --providers FINGERPRINT (`hpcserve nodes` shows them)',
    http_status: 403,
    exit_code: 12,
  },
  E_KEY_RATE: {
    cause:
      'More was asked with an API key within a minute than its limits allow, over all gateways of the site.',
    fix: 'try again after the time that `retry-after` gives',
    http_status: 429,
    exit_code: 7,
  },
  E_KEY_BUDGET: {
    cause: 'The tokens or device-seconds that an API key may use are used up, over all gateways of the site.',
    fix: 'wait for the next day or month where the budget is for one, or ask the operator of the gateway for more',
    http_status: 429,
    exit_code: 7,
  },
  E_KEY_FOLDER: {
    cause: 'The folder of the API keys cannot be read or written.',
    fix: 'check that the filesystem is mounted, has space and quota, and that the folder is yours',
    http_status: 503,
    exit_code: 12,
  },
  E_LEDGER_MISSING: {
    cause: 'The ledger file does not exist: no gateway of this site has run yet.',
    fix: 'check the site and the state folder; the first gateway that starts writes the ledger',
    http_status: 404,
    exit_code: 9,
  },
  E_LEDGER_WRITE: {
    cause:
      'The ledger cannot be written (disk full, quota, I/O error), and as many records as may wait in memory do: no request is answered unrecorded.',
    fix: 'free space or quota in the gateway folder; the gateway goes on by itself once it can write',
    http_status: 503,
    exit_code: 12,
  },
  E_LEDGER_BUSY: {
    cause: 'Another process holds the ledger.',
    fix: 'try again in a moment; one gateway at a time may write a ledger',
    http_status: 503,
    exit_code: 10,
  },
  E_LEDGER_VERSION: {
    cause: 'The ledger was written by a newer version of hpcserve.',
    fix: 'use the newer version; an older one does not write to it, so that nothing is lost',
    http_status: 500,
    exit_code: 12,
  },
  E_LEDGER_QUERY: {
    cause: 'A question in SQL was not answered: it is wrong, it would write, or it takes longer than it may.',
    fix: 'ask one SELECT of the views in docs/usage.md; `--time-limit` gives it more time',
    http_status: 400,
    exit_code: 2,
  },
  E_LEDGER_DAMAGED: {
    cause: 'The ledger file fails its integrity check.',
    fix: 'start the gateway: it sets the damaged file aside and saves what can still be read',
    http_status: 500,
    exit_code: 12,
  },
});
