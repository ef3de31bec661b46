import { z } from 'zod';
import { clientPaths } from '../spec/wire.ts';
import type { Members } from './dialects/chat-form.ts';
import type { Replica } from './routing/replica.ts';
import type { SessionLink } from './session-link.ts';

/** A replica tokenizes some thousand tokens in milliseconds; while it reads long prompts it may be late. */
const count_ms = 5000;
const counted = z.object({ count: z.int().min(0) });

/** Tokens of a chat's prompt, by a replica's own tokenizer and template; undefined where it does not tell. */
export async function countTokens(
  { session, served }: Replica<SessionLink>,
  { messages, tools, chat_template_kwargs }: Members,
): Promise<number | undefined> {
  const chat = { model: served.name, messages, tools, chat_template_kwargs };
  try {
    return counted.parse(await session.tell(clientPaths.tokenize, served.name, chat, count_ms)).count;
  } catch {
    // It has no such path, or the text is longer than it reads: whoever asks has an estimate.
    return undefined;
  }
}
