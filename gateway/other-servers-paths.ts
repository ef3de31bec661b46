/** Paths that other servers have and this one does not, and what to do instead: clients that try them say it on. */
const instead: Readonly<Record<string, string>> = {
  '/tokenizer_info': 'give the client the model’s tokenizer, such as lm-eval’s `tokenizer=FOLDER`',
  '/v1/tokenize': 'use /tokenize and a base URL without /v1',
  '/v1/detokenize': 'use /detokenize and a base URL without /v1',
  '/generate': 'use /v1/completions',
  '/ping': 'use /health',
  '/healthz': 'use /health',
  '/version': 'the header x-hpcserve-engine of an answer names its engine; `hpcserve status` shows more',
  '/server_info': 'use `hpcserve status`, or /v1/models',
  '/get_model_info': 'use /v1/models',
  '/get_server_info': 'use `hpcserve status`, or /v1/models',
  '/start_profile': 'profile an engine outside of a gateway',
  '/stop_profile': 'profile an engine outside of a gateway',
  '/reset_prefix_cache': 'use prompts that begin differently: a cache belongs to all keys',
  '/flush_cache': 'use prompts that begin differently: a cache belongs to all keys',
};

/** Undefined where nobody is known to have the path. */
export function insteadOf(path: string): string | undefined {
  return Object.hasOwn(instead, path) ? instead[path] : undefined;
}
