/**
 * What an engine's last lines say of its end. Only ends (and hangs) are judged, never lines of an engine that serves:
 * prompts may be among them, and whoever writes a prompt must not be able to end an engine by its words.
 */
import { readLogLine } from './log-line.ts';
import { type FatalScope, type RecordedFailure, recordedFailures } from './recorded-failures.ts';

export type { FatalScope } from './recorded-failures.ts';

export interface FatalSign extends Pick<RecordedFailure, 'what' | 'try' | 'option'> {
  scope: FatalScope;
  /** The line that says so. */
  line: string;
}

/**
 * The first line that says that going on is of no use, and why: what follows it are its consequences. Else the first
 * that says only that. Pure.
 */
export function fatalSign(lines: readonly string[]): FatalSign | undefined {
  let unexplained: FatalSign | undefined;
  for (const line of lines) {
    const found = failureIn(readLogLine(line).text);
    if (found?.scope === undefined) continue;
    const { scope, what, option } = found;
    const sign: FatalSign = { scope, what, try: found.try, line: line.trim(), option };
    if (!found.consequence) return sign;
    unexplained ??= sign;
  }
  return unexplained;
}

/** What a line without the prefixes of loggers is a record of. */
export function failureIn(text: string): RecordedFailure | undefined {
  return recordedFailures.find(({ test }) => test.test(text.trimStart()));
}
