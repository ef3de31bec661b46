import type { StreamDialect } from './request-body.ts';

export interface Endpoint {
  path: string;
  dialect: StreamDialect;
}

/** OpenAI paths whose requests travel to a replica. */
export const endpoints: ReadonlyMap<string, Endpoint> = new Map(
  (
    [
      ['/v1/chat/completions', 'completions'],
      ['/v1/completions', 'completions'],
      ['/v1/embeddings', 'none'],
      ['/v1/responses', 'responses'],
    ] as const
  ).map(([path, dialect]) => [path, { path, dialect }]),
);
