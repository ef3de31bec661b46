import { createHash } from 'node:crypto';
import type { ChatMessage } from '../../text/chat-template.ts';

/**
 * Messages as a chat template takes them. Most templates know four roles and leave out a message of any other without a
 * word, so a developer's instructions are a system's where the template does not name developers. Mistral's refuse
 * conversations whose calls have ids of another length than nine, so ids are shortened for them.
 * @param template source of the template
 */
export function messagesForTemplate(messages: readonly ChatMessage[], template: string): ChatMessage[] {
  const developers = template.includes('developer');
  const short = nineCharacters.test(template);
  return messages.map((message) => {
    const changed: ChatMessage = Object.assign({}, message);
    if (message.role === 'developer' && !developers) changed.role = 'system';
    if (short && message.tool_call_id !== undefined) changed.tool_call_id = shortId(message.tool_call_id);
    if (short && message.tool_calls !== undefined)
      changed.tool_calls = message.tool_calls.map((call) =>
        Object.assign({}, call, { id: shortId(call.id) }),
      );
    return changed;
  });
}

/** The condition under which Mistral's templates raise an exception: `tool_call.id|length != 9`. */
const nineCharacters = /\blength\s*!=\s*9\b/;

/** The same for the same id, so that a result stays that of its call. */
function shortId(id: string): string {
  if (/^[a-zA-Z0-9]{9}$/.test(id)) return id;
  return createHash('sha256').update(id).digest('hex').slice(0, 9);
}
