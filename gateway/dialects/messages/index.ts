import { clientPaths, type OpenAiError } from '../../../spec/wire.ts';
import { endpoints } from '../../relay/endpoints.ts';
import type { Members } from '../chat-form.ts';
import type { Dialect } from '../dialect.ts';
import { MessagesAnswer } from './answer.ts';
import { chatOfMessages, countedOf } from './request.ts';

/** By status, as Anthropic names them; others are of the caller below 500, and of the server from there. */
const errorTypes: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  503: 'overloaded_error',
  504: 'timeout_error',
};

function refusal({ message }: OpenAiError['error'], status: number, request_id: string): Members {
  const type = errorTypes[status] ?? (status < 500 ? 'invalid_request_error' : 'api_error');
  return { type: 'error', error: { type, message }, request_id };
}

/** Anthropic's messages API, which agents' tools speak. */
export const messagesDialect: Dialect = {
  path: '/v1/messages',
  read: (body) => ({
    endpoint: endpoints.get('/v1/chat/completions')!,
    body: chatOfMessages(body),
    answer: new MessagesAnswer(),
  }),
  refusal,
};

/** Its count of a prompt's tokens, by the engine's own tokenizer and template. */
export const countDialect: Dialect = {
  path: '/v1/messages/count_tokens',
  read: (body) => ({
    endpoint: endpoints.get(clientPaths.tokenize)!,
    body: countedOf(body),
    answer: Object.assign(new MessagesAnswer(), {
      translate: ({ count }: Members) => ({ input_tokens: count }),
    }),
  }),
  refusal,
};
