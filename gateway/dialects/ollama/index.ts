import type { OpenAiError } from '../../../spec/wire.ts';
import { endpoints } from '../../relay/endpoints.ts';
import type { Members } from '../chat-form.ts';
import type { Dialect } from '../dialect.ts';
import { OllamaAnswer } from './answer.ts';
import { chatOfGenerate, chatOfOllama, completionOfGenerate, embeddingsOf } from './request.ts';

const chats = endpoints.get('/v1/chat/completions')!;
const completions = endpoints.get('/v1/completions')!;
const embeddings = endpoints.get('/v1/embeddings')!;

const refusal = ({ message }: OpenAiError['error']): Members => ({ error: message });
const vectorsOf = (answer: Members): unknown[] =>
  (answer.data as Members[]).map(({ embedding }) => embedding);

/** Ollama's API as far as it computes; what it says of models is in `models.ts`. */
export const ollamaDialects: readonly Dialect[] = [
  {
    path: '/api/chat',
    read: (body) => ({ endpoint: chats, body: chatOfOllama(body), answer: new OllamaAnswer('chat') }),
    refusal,
  },
  {
    path: '/api/generate',
    read: (body) =>
      body.raw === true
        ? { endpoint: completions, body: completionOfGenerate(body), answer: new OllamaAnswer('generate') }
        : { endpoint: chats, body: chatOfGenerate(body), answer: new OllamaAnswer('generate') },
    refusal,
  },
  {
    path: '/api/embed',
    read: (body) => ({
      endpoint: embeddings,
      body: embeddingsOf(body),
      answer: Object.assign(new OllamaAnswer('generate'), {
        translate: (answer: Members) => ({
          model: answer.model,
          embeddings: vectorsOf(answer),
          prompt_eval_count: (answer.usage as Members | undefined)?.prompt_tokens ?? 0,
        }),
      }),
    }),
    refusal,
  },
  {
    // Of its first versions: one text.
    path: '/api/embeddings',
    read: (body) => ({
      endpoint: embeddings,
      body: embeddingsOf(body),
      answer: Object.assign(new OllamaAnswer('generate'), {
        translate: (answer: Members) => ({ embedding: vectorsOf(answer)[0] }),
      }),
    }),
    refusal,
  },
];
