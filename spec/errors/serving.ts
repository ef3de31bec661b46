import { defineErrors } from './define.ts';

/** What a device worker answers to requests on OpenAI's paths. */
export const servingErrors = defineErrors({
  E_REQUEST_INVALID: {
    cause: 'A request body is not JSON, misses a parameter, or holds a value of a wrong type or range.',
    fix: 'correct the parameter that the message names; https://platform.openai.com/docs/api-reference describes them',
    http_status: 400,
    exit_code: 2,
  },
  E_REQUEST_PARAMETER: {
    cause: 'A request holds a parameter that is not known; ignoring it could change the answer unnoticed.',
    fix: 'remove the parameter, or use the one that the message proposes',
    http_status: 400,
    exit_code: 2,
  },
  E_REQUEST_UNSUPPORTED: {
    cause: 'A request asks for something that this model or engine cannot do (images, audio, suffix, …).',
    fix: 'leave it out, or choose a model that can do it',
    http_status: 400,
    exit_code: 2,
  },
  E_REQUEST_REMOTE_MEDIA: {
    cause:
      'A request names an image, sound, film or file by its address, and the model does not allow its engine to fetch from there.',
    fix: 'send it inside of the request (`data:image/png;base64,…`), or have `remote_media.domains` of model.yaml name the host',
    http_status: 400,
    exit_code: 2,
  },
  E_REQUEST_SCHEMA: {
    cause: 'A JSON schema, pattern or grammar cannot be turned into a constraint on the output.',
    fix: 'remove the keyword that the message names, or express it with supported ones',
    http_status: 400,
    exit_code: 2,
  },
  E_REQUEST_TEMPLATE: {
    cause: "The model's chat template refused the messages, or cannot be rendered.",
    fix: 'order roles as the model expects them (often: system first, then user and assistant in turn)',
    http_status: 400,
    exit_code: 2,
  },
  E_CONTEXT_LENGTH: {
    cause: 'Prompt and requested answer are longer than the context that the model is served with.',
    fix: 'shorten the prompt, lower max_tokens, or deploy the model with a larger context_tokens',
    http_status: 400,
    exit_code: 2,
  },
  E_MODEL_NOT_SERVED: {
    cause: 'No model of this name or alias is served here.',
    fix: 'use a name that GET /v1/models lists',
    http_status: 404,
    exit_code: 9,
  },
  E_MODEL_NOT_READY: {
    cause: 'The model is known but still loading, being unloaded, or it failed.',
    fix: 'try again after the seconds that Retry-After says; `hpcserve status` shows the state',
    http_status: 503,
    exit_code: 11,
  },
  E_WORKER_DRAINING: {
    cause: 'The device worker finishes what runs and admits nothing new, because it is about to stop.',
    fix: 'send the request to another replica',
    http_status: 503,
    exit_code: 11,
  },
  E_REQUEST_MOVED: {
    cause:
      'The model leaves this device, so that it is free for others: its requests go on where the same model runs.',
    fix: 'nothing: the gateway has the answer continued by another replica; who asks a replica directly asks another one',
    http_status: 503,
    exit_code: 11,
  },
  E_WORKER_BUSY: {
    cause: 'As many requests wait for this model as its queue may hold.',
    fix: 'try again after the seconds that Retry-After says, or add a replica',
    http_status: 429,
    exit_code: 11,
  },
  E_SLO_REFUSED: {
    cause:
      'By a simulation of the device, this request or one that it already serves would miss its service level (`slo`).',
    fix: 'try again after the seconds that Retry-After says, add a replica, or relax `slo` in model.yaml',
    http_status: 429,
    exit_code: 11,
  },
  E_REQUEST_TOO_LARGE: {
    cause: 'The body of a request is larger than the limit.',
    fix: 'send less: the message says the limit in bytes',
    http_status: 413,
    exit_code: 2,
  },
  E_REQUEST_PATH: {
    cause: 'No such path, or a method that the path does not have.',
    fix: 'use the paths of the OpenAI API: /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/models',
    http_status: 404,
    exit_code: 2,
  },
  E_REQUEST_METHOD: {
    cause: 'The path exists, but not with this HTTP method.',
    fix: 'use the method that the Allow header names',
    http_status: 405,
    exit_code: 2,
  },
  E_CLIENT_SLOW: {
    cause: 'The client did not read its answer for longer than the limit; its sequence was cancelled.',
    fix: 'read the stream without pauses, or ask without stream',
    http_status: 408,
    exit_code: 7,
  },
  E_WORKER_SOCKET: {
    cause: 'The unix socket of a device worker could not be opened where it should be.',
    fix: 'check that the folder exists, belongs to you with mode 0700, and that the path is under 107 bytes',
    http_status: 500,
    exit_code: 12,
  },
  E_WORKER_PARKING: {
    cause:
      'The folder that the site names for keys and values of requests that gave way cannot be used on a node. They wait in host memory as far as that suffices; further ones are computed again.',
    fix: 'name a folder on a disk of the nodes in sharing.parking_dir of the site config (often $TMPDIR), or leave it out',
    http_status: 500,
    exit_code: 3,
  },
  E_WORKER_STUCK: {
    cause: 'The compute thread of a device worker has not come to the end of what it does for far too long.',
    fix: 'see `dmesg` of the node for its driver and filesystems; raise `timeouts.stall_s` of the model if the device is only slow',
    http_status: 503,
    exit_code: 11,
  },
  E_WORKER_COMPUTE: {
    cause: 'The compute thread of a device worker ended or an iteration of an engine failed.',
    fix: 'see the log of the worker; if it repeats, report it with that log',
    http_status: 500,
    exit_code: 11,
  },
});
