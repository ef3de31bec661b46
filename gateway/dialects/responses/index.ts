import { endpoints } from '../../relay/endpoints.ts';
import type { Dialect } from '../dialect.ts';
import { ResponsesAnswer } from './answer.ts';
import { chatOfResponse } from './request.ts';

/** Engines that have chats alone; of commands of a user's own nothing is known. */
const without = new Set<string | undefined>(['native', 'llama.cpp', 'lmdeploy', 'ollama', 'tgi']);

/** OpenAI's responses API, for engines that do not have it themselves. */
export const responsesDialect: Dialect = {
  path: '/v1/responses',
  read: (body) => ({
    endpoint: endpoints.get('/v1/chat/completions')!,
    body: chatOfResponse(body),
    answer: new ResponsesAnswer(body),
  }),
  refusal: (error) => ({ error }),
  isSpokenBy: (engine) => !without.has(engine),
};
