import { type Chunk, type ChunkChoice, chunkOf } from './chunk.ts';
import type { EventRewriter } from './journal.ts';

/** What the client has of an answer. */
export interface TextSoFar {
  text: string;
  tokens: number;
  /** Members that all chunks of an answer share. */
  head?: Pick<Chunk, 'id' | 'created' | 'model'> | undefined;
}

const dropped = Buffer.alloc(0);

/**
 * Chunks of an engine that goes on behind a text become chunks of the answer that was begun: its identity, no
 * second role, offsets from its start, and usage of the whole: what the engine counts as prompt was in part answer.
 */
export function rewriteChunks({ text, tokens, head }: TextSoFar): EventRewriter {
  const before = { characters: text.length, tokens };
  const shared = Object.fromEntries(Object.entries(head ?? {}).filter(([, value]) => value !== undefined));
  return (bytes, start, end) => {
    const chunk = chunkOf(bytes.toString('utf8', start, end));
    if (!chunk) return bytes.subarray(start, end);
    if (head && chunk.choices?.length === 1 && isOpening(chunk.choices[0]!)) return dropped;
    Object.assign(chunk, shared);
    for (const choice of chunk.choices ?? []) rewriteChoice(choice, before.characters, head !== undefined);
    if (chunk.usage) wholeUsage(chunk, before.tokens);
    return Buffer.from(`data: ${JSON.stringify(chunk)}\n\n`);
  };
}

/** A chunk that only says whose turn it is. */
function isOpening({ delta, finish_reason, logprobs }: ChunkChoice): boolean {
  if (!delta?.role || finish_reason || logprobs) return false;
  return Object.entries(delta).every(
    ([name, value]) => name === 'role' || value === '' || value === null || isEmptyList(value),
  );
}

function isEmptyList(value: unknown): boolean {
  return Array.isArray(value) && value.length === 0;
}

function rewriteChoice(choice: ChunkChoice, characters: number, opened: boolean): void {
  if (opened) delete choice.delta?.role;
  const offsets = choice.logprobs?.text_offset;
  if (choice.logprobs && Array.isArray(offsets))
    choice.logprobs.text_offset = offsets.map((offset: number) => offset + characters);
}

function wholeUsage({ usage }: Chunk, tokens: number): void {
  const { prompt_tokens, completion_tokens } = usage!;
  if (typeof prompt_tokens !== 'number') return;
  const answered = Math.min(tokens, prompt_tokens);
  usage!.prompt_tokens = prompt_tokens - answered;
  usage!.completion_tokens = (typeof completion_tokens === 'number' ? completion_tokens : 0) + answered;
}
