/** A chunk of a chat or text completion, as far as the gateway reads it; engines add members of their own. */
export interface Chunk {
  id?: string;
  created?: number;
  model?: string;
  choices?: ChunkChoice[];
  usage?: Record<string, unknown> | null;
  /** Of a chat, in its first chunks, where they were asked for. */
  prompt_token_ids?: number[] | null;
  [more: string]: unknown;
}

export interface ChunkChoice {
  index?: number;
  text?: string;
  delta?: Record<string, unknown>;
  logprobs?: Record<string, unknown> | null;
  finish_reason?: string | null;
  stop_reason?: string | number | null;
  /** Those that the chunk carries, where they were asked for. */
  token_ids?: number[] | null;
  /** Of a text completion, in the first chunk of a choice. */
  prompt_token_ids?: number[] | null;
  [more: string]: unknown;
}

/** The JSON that an event carries; undefined where it carries none. */
export function chunkOf(event: string): Chunk | undefined {
  const data = event
    .split(/\r?\n/)
    .filter((line) => line.startsWith('data:'))
    .map((line) => line.slice(5))
    .join('\n');
  try {
    const chunk: unknown = JSON.parse(data);
    return typeof chunk === 'object' && chunk !== null ? (chunk as Chunk) : undefined;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}
