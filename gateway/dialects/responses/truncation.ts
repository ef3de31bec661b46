import type { Members } from '../chat-form.ts';
import type { ReadingContext } from '../dialect.ts';

/**
 * Of text in a prompt, where its engine tells no tokens. Lower: more is left out than must be; higher: what does not
 * fit is refused by the engine.
 */
const bytes_per_token = 3;
/** Of the context, for an answer whose length is not said. */
const answer_share = 0.25;

/**
 * `truncation: auto`: leaves out the oldest turns where a chat is longer than the context. What the system says stays,
 * and the last turn.
 */
export async function truncatedChat(
  chat: Members,
  { context_tokens, count }: Pick<ReadingContext, 'context_tokens' | 'count'>,
): Promise<Members> {
  const messages = chat.messages as Members[];
  const head = messages.findIndex(({ role }) => role !== 'system' && role !== 'developer');
  if (head < 0) return chat;
  const asked = Number(chat.max_completion_tokens ?? answer_share * context_tokens);
  const room_tokens = Math.max(0, context_tokens - asked);
  const from = (start: number): Members =>
    start === head ? chat : { ...chat, messages: [...messages.slice(0, head), ...messages.slice(start)] };
  const fits = async (start: number): Promise<boolean> => {
    const { messages: said, tools } = from(start);
    const bytes = Buffer.byteLength(JSON.stringify([said, tools ?? '']));
    // A token is a byte at least, and what a template adds is less than the JSON around the words.
    if (bytes <= room_tokens) return true;
    const tokens = await count?.(from(start));
    return tokens === undefined ? bytes <= bytes_per_token * room_tokens : tokens <= room_tokens;
  };
  // A turn begins with what the user says: results of calls are not left without the calls.
  const starts = [...messages.keys()].filter(
    (at) => at === head || (at > head && messages[at]!.role === 'user'),
  );
  if (await fits(head)) return chat;
  // The first of those that fit, of which the last is taken to be one.
  let [low, high] = [1, starts.length - 1];
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if (await fits(starts[middle]!)) high = middle;
    else low = middle + 1;
  }
  return from(starts[high]!);
}
