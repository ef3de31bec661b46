import { z } from 'zod';
import type { MovedAnswer } from '../../spec/wire.ts';

const movedSchema = z.object({
  session: z.string().regex(/^[0-9a-f]{32}$/),
  kv: z.string().regex(/^[0-9a-f]{1,64}$/),
});

/** What a replica says of where an answer goes on; undefined where it says nothing that could be. */
export function readMoved(said: unknown): MovedAnswer | undefined {
  if (said === undefined) return undefined;
  const { data } = movedSchema.safeParse(said);
  return data;
}

/** The same, from `headers.moved`. */
export function parseMoved(text: string): MovedAnswer | undefined {
  try {
    return readMoved(JSON.parse(text));
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}
