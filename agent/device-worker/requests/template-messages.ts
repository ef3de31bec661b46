import type { ChatMessage } from '../../text/chat-template.ts';

/**
 * Messages as a chat template takes them. Most templates know four roles and leave out a message of any other without a
 * word, so a developer's instructions are a system's where the template does not name developers.
 * @param template source of the template
 */
export function messagesForTemplate(messages: readonly ChatMessage[], template: string): ChatMessage[] {
  const developers = template.includes('developer');
  return messages.map((message) => {
    const changed: ChatMessage = Object.assign({}, message);
    if (message.role === 'developer' && !developers) changed.role = 'system';
    return changed;
  });
}
