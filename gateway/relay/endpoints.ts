import { clientPaths } from '../../spec/wire.ts';
import type { StreamDialect } from './request-body.ts';

export interface Endpoint {
  path: string;
  dialect: StreamDialect;
  /** Whether a device computes for it: only then it counts as demand, and against the tokens of its key. */
  computes: boolean;
}

/** Paths whose requests travel to a replica: OpenAI's, and vLLM's for a model's tokens. */
export const endpoints: ReadonlyMap<string, Endpoint> = new Map(
  (
    [
      ['/v1/chat/completions', 'completions', true],
      ['/v1/completions', 'completions', true],
      ['/v1/embeddings', 'none', true],
      ['/v1/responses', 'responses', true],
      [clientPaths.tokenize, 'none', false],
      [clientPaths.detokenize, 'none', false],
    ] as const
  ).map(([path, dialect, computes]) => [path, { path, dialect, computes }]),
);
