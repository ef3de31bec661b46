import { headers } from '../../../spec/wire.ts';
import type { AnswerContext } from './answer.ts';

/** Of one header. Lower: long lists are cut earlier; higher: more of the room that clients have for headers. */
const warning_chars_max = 1000;

/** More than fit. */
const warnings_max = 64;

/** The same, whose answer says in its header what of the request is without effect. */
export function withWarnings(context: AnswerContext, warnings: readonly string[]): AnswerContext {
  if (warnings.length === 0) return context;
  const text = printable([...new Set(warnings.slice(0, warnings_max))].join('; '));
  const shown = text.length > warning_chars_max ? `${text.slice(0, warning_chars_max - 1)}...` : text;
  return { ...context, headers: { ...context.headers, [headers.warning]: shown } };
}

/** A header holds ASCII, and no line breaks. */
function printable(text: string): string {
  return text.replace(/[^\x20-\x7e]/gu, (character) => `\\u{${character.codePointAt(0)!.toString(16)}}`);
}
