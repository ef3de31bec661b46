import type { Dialect } from './dialect.ts';
import { countDialect, messagesDialect } from './messages/index.ts';
import { ollamaDialects } from './ollama/index.ts';
import { responsesDialect } from './responses/index.ts';

/** By path: APIs whose requests and answers are turned into those of chats, completions and embeddings. */
export const dialects: ReadonlyMap<string, Dialect> = new Map(
  [responsesDialect, messagesDialect, countDialect, ...ollamaDialects].map((one) => [one.path, one]),
);
