import type { Members } from '../chat-form.ts';

/** Of text in a prompt. Lower: more is left out than must be; higher: what does not fit is refused by the engine. */
const bytes_per_token = 3;
/** Of the context, for an answer whose length is not said. */
const answer_share = 0.25;

/**
 * `truncation: auto`: leaves out the oldest turns where a chat is longer than the context, as far as its bytes tell.
 * What the system says stays, and the last turn.
 */
export function truncatedChat(chat: Members, context_tokens: number): Members {
  const messages = chat.messages as Members[];
  const asked = Number(chat.max_completion_tokens ?? answer_share * context_tokens);
  const bytes_max = bytes_per_token * Math.max(0, context_tokens - asked);
  const head = messages.findIndex(({ role }) => role !== 'system' && role !== 'developer');
  if (head < 0) return chat;
  const sizes = messages.map((message) => Buffer.byteLength(JSON.stringify(message)));
  let bytes =
    Buffer.byteLength(JSON.stringify(chat.tools ?? '')) + sizes.reduce((sum, size) => sum + size, 0);
  let from = head;
  // A turn begins with what the user says: results of calls are not left without the calls.
  for (let at = head + 1; bytes > bytes_max && at < messages.length; at++) {
    if (messages[at]!.role !== 'user') continue;
    for (; from < at; from++) bytes -= sizes[from]!;
  }
  return from === head ? chat : { ...chat, messages: [...messages.slice(0, head), ...messages.slice(from)] };
}
