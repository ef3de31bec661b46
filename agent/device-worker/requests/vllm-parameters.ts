import { HpcserveError } from '../../../spec/errors/error.ts';
import type { BodyReader } from './body-reader.ts';

/** Parameters of vLLM that the native engine does not have, and what to do instead. */
const absent: Readonly<Record<string, string>> = {
  prompt_logprobs: 'a text completion with `echo` and `logprobs` has those of its prompt',
  return_tokens_as_token_ids: '`/tokenize` gives the ids of a text',
  return_token_ids: '`/tokenize` gives the ids of a text',
  prompt_embeds: 'send the prompt as a text or as token ids',
  truncate_prompt_tokens: 'shorten the prompt: `/tokenize` counts its tokens',
  use_beam_search: 'ask for `n` answers with `logprobs` and choose',
  length_penalty: 'it belongs to a search that is not here; leave it out',
  allowed_token_ids: 'use `logit_bias` or `grammar`',
  bad_words: 'use `logit_bias`',
  logits_processors: 'use `logit_bias` or `grammar`',
  guided_whitespace_pattern: 'white space between tokens of JSON is a matter of the engine; leave it out',
  spaces_between_special_tokens: 'tokens of control are written as the model has them',
  cache_salt: 'keys have a scope of their own in the prefix cache',
  priority: 'requests are taken by what was promised to their model',
  kv_transfer_params: 'engines behind a gateway hand over KV by themselves',
};

/** Values that ask for nothing, which some clients write out. */
const neutral: Readonly<Record<string, string>> = {
  use_beam_search: 'false',
  length_penalty: '1',
  bad_words: '[]',
  spaces_between_special_tokens: 'true',
  return_tokens_as_token_ids: 'false',
  return_token_ids: 'false',
  priority: '0',
};

/** @throws HpcserveError E_REQUEST_UNSUPPORTED that names the parameter, and what to do instead */
export function refuseVllmParameters(body: BodyReader): void {
  for (const [name, instead] of Object.entries(absent)) {
    const value = body.raw(name);
    if (value === undefined || JSON.stringify(value) === neutral[name]) continue;
    throw new HpcserveError('E_REQUEST_UNSUPPORTED', {
      what: `\`${name}\` is not supported by the native engine`,
      try: instead,
      details: { param: name },
    });
  }
}
