import { endpoints } from '../../relay/endpoints.ts';
import { isMembers, type Members } from '../chat-form.ts';
import type { Dialect, ReadingContext, TranslatedRequest } from '../dialect.ts';
import { ResponsesAnswer } from './answer.ts';
import { chatOfResponse, itemsOf } from './request.ts';
import { truncatedChat } from './truncation.ts';

/** Engines that have chats alone; of commands of a user's own nothing is known. */
const without = new Set<string | undefined>(['native', 'llama.cpp', 'lmdeploy', 'ollama', 'tgi']);

async function read(body: Members, context: ReadingContext): Promise<TranslatedRequest> {
  const { earlier, keep } = context;
  const input = itemsOf(body.input);
  const items = [...(earlier?.items ?? []), ...input];
  const { previous_response_id: _, ...alone } = body;
  // The input itself, where nothing goes before it: what is wrong with it is said of its own places.
  const chat = chatOfResponse(earlier ? { ...alone, input: items } : body);
  const keepAll = (response: Members): Promise<void> => {
    const output = (response.output as Members[]).filter(isMembers);
    return keep!({ response, input, items: [...items, ...output] });
  };
  return {
    endpoint: endpoints.get('/v1/chat/completions')!,
    body: body.truncation === 'auto' ? await truncatedChat(chat, context) : chat,
    answer: new ResponsesAnswer(body, keep && keepAll),
  };
}

/** OpenAI's responses API, for engines that do not have it themselves. */
export const responsesDialect: Dialect = {
  path: '/v1/responses',
  read,
  refusal: (error) => ({ error }),
  isSpokenBy: (engine) => !without.has(engine),
  kept: {
    earlierOf: ({ previous_response_id: id }) => (typeof id === 'string' ? id : undefined),
    isKept: ({ store }) => store !== false,
  },
};
