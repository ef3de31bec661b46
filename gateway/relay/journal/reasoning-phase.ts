import type { ChoiceSoFar, ReasoningMember } from './answer-so-far.ts';
import type { SettledText } from './settled-text.ts';

/** How models mark their reasoning that vLLM's and SGLang's parsers read; the only marks that are known here. */
const opening = '<think>';
export const closing = '</think>';

/** Where an answer is: in its reasoning or behind it, and what of its text the client does not have yet. */
export interface AnswerPhase {
  pending: string;
  /** Under which name it goes on with its reasoning; absent: behind that, or without any. */
  reasoning?: ReasoningMember;
}

/**
 * Compares what the client has of a chat with what its tokens spell, and so finds out what the engine's parser makes of
 * its text. Undefined where that cannot be told: then nobody here knows what the parser would make of the rest.
 */
export function phaseOf(choice: ChoiceSoFar, { text, before }: SettledText): AnswerPhase | undefined {
  const { content, reasoning, reasoning_member } = choice;
  if (reasoning_member === undefined) {
    const pending = behind(text, content);
    // Reasoning that its engine does not take apart is text as any other, as long as some of it says so.
    const apart = content === '' && (text.includes(opening) || before.trimEnd().endsWith(opening));
    return pending === undefined || apart ? undefined : { pending };
  }
  const opened = text.trimStart().startsWith(opening);
  if (!opened && !before.trimEnd().endsWith(opening)) return undefined;
  const thought = opened ? text.slice(text.indexOf(opening) + opening.length) : text;
  const end = thought.indexOf(closing);
  if (end === -1) {
    const pending = content === '' ? behind(thought, reasoning) : undefined;
    return pending === undefined ? undefined : { pending, reasoning: reasoning_member };
  }
  if (behind(thought.slice(0, end), reasoning)?.trim() !== '') return undefined;
  const pending = behind(thought.slice(end + closing.length), content);
  return pending === undefined ? undefined : { pending };
}

/** What of a text comes after what the client has; parsers leave white space at the beginning out. */
function behind(text: string, has: string): string | undefined {
  if (text.startsWith(has)) return text.slice(has.length);
  const trimmed = text.trimStart();
  return trimmed.startsWith(has) ? trimmed.slice(has.length) : undefined;
}
