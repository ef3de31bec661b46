/**
 * Why an engine ended, from what all its processes wrote: the first cause, not the last traceback. Pure.
 *
 * Engines of several processes write one failure several times: the process that met it, the one that waited for it
 * (`Engine core initialization failed. See root cause above`), and the one that was asked to serve. So the first line
 * that is in the table of recorded failures counts, else the first exception that is no pointer to another one, else
 * what follows from a failure (a process that was killed says nothing), else the first line that calls itself an error.
 */
import { type FatalScope, failureIn } from './fatal.ts';
import { isAccessLine, type LogLine, readLogLine } from './log-line.ts';

export interface Cause {
  /** The line that says it, without the prefixes of loggers. */
  line: string;
  /** What happened, in words; absent where no recorded failure is like it. */
  what?: string;
  /** What people do about it. */
  try?: string;
  scope?: FatalScope | undefined;
  option?: true | undefined;
  /** What it says follows from something that it does not say: a process ended, or does not answer. */
  is_silent?: true | undefined;
}

/**
 * Exceptions that say no more than that there was another one, or that somebody asked the engine to end. What did not
 * end in time is said by the one that follows a bare TimeoutError.
 */
const pointers =
  /\bsee (the )?(root cause|stack trace)\b|\broot cause above\b|\bfor the root cause\b|\bcheck the stack trace\b|\binitialization failed due to an exception in a background process\b|\bprocess failed to start\b|\bEngine core initialization failed\b|\bchild process\b.*\bfailed\b|^(\w+\.)*(EngineDeadError|EngineGenerateError|KeyboardInterrupt|SystemExit|CancelledError|BrokenPipeError|ConnectionResetError|ConnectionRefusedError|EOFError|Exit|ProcessExitedException|ProcessRaisedException|ChildFailedError)\b|^(\w+\.)*TimeoutError$/i;

/** `torch.OutOfMemoryError: CUDA out of memory`, `AssertionError`, `pkg.SomeException: …`. */
const exception =
  /^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure|Fault|Expired)\b(?::|$)/;
/** Of one request, whose client was told. */
const of_a_request = /\bException in ASGI application\b|\bException in callback\b/;
const error_like =
  /\b(error|fatal|exception|panicked|abort(ed)?|failed|cannot|unable to|not supported|unsupported)\b/i;
/** Whatever is a cause has one of these, or is in a traceback. */
const noteworthy =
  /error|exception|traceback|fatal|panick|abort|fail|cannot|can't|could(n't| not)|unable|not (supported|found|enough|available|recogni)|unsupported|unknown|missing|memory|died|dead|crash|fault|killed|terminated|no such|no space|denied|no kernel|too (old|many)|invalid|less than|greater than|out of|watchdog|timed? ?out|lost|bus|custom code|trust_remote_code|divisible|topology/i;
/** Lines kept after one that is noteworthy: what an exception says may go on in the next ones. */
const following_lines = 3;
const line_characters_max = 320;

/** Whether a line could be a cause: of long logs only such lines are kept. */
function isNoteworthy(line: string): boolean {
  return noteworthy.test(line) && !isAccessLine(line);
}

/** Of the lines of a long log the ones that matter: the first that are noteworthy, at most `lines_max`. */
export function noteworthyLines(lines: readonly string[], lines_max: number): string[] {
  const kept: string[] = [];
  let left = 0;
  for (const line of lines) {
    if (kept.length >= lines_max) break;
    if (isNoteworthy(line)) left = following_lines + 1;
    if (left > 0) kept.push(line);
    left--;
  }
  return kept;
}

export function firstCause(lines: readonly string[]): Cause | undefined {
  const read = lines.filter((line) => !isAccessLine(line)).map(readLogLine);
  const blamed = withoutRequests(read).filter(({ level }) => level === undefined || level === 'error');
  return (
    recorded(blamed, false) ??
    // Libraries of devices speak through whatever logger there is.
    recorded(read, false, 'device') ??
    firstException(blamed) ??
    recorded(blamed, true) ??
    firstErrorLine(blamed)
  );
}

function recorded(lines: readonly LogLine[], isConsequence: boolean, scope?: FatalScope): Cause | undefined {
  for (const { text } of lines) {
    const found = failureIn(text);
    if (!found || (found.consequence ?? false) !== isConsequence) continue;
    if (scope !== undefined && found.scope !== scope) continue;
    const { what, option } = found;
    const is_silent = isConsequence || undefined;
    return { line: clipped(text), what, try: found.try, scope: found.scope, option, is_silent };
  }
  return undefined;
}

/** Exceptions begin at the margin; what pydantic and others say of them stands in the next line of the same process. */
function firstException(lines: readonly LogLine[]): Cause | undefined {
  for (const [at, { source, text }] of lines.entries()) {
    if (!exception.test(text) || pointers.test(text) || failureIn(text)?.consequence) continue;
    const next = lines.slice(at + 1, at + 1 + following_lines).find((other) => other.source === source);
    const more = next !== undefined && /^ {2}\S/.test(next.text) && !/^ {2}File "/.test(next.text);
    return { line: clipped(more ? `${text.trim()} ${next.text.trim()}` : text) };
  }
  return undefined;
}

function firstErrorLine(lines: readonly LogLine[]): Cause | undefined {
  const found = lines.find(
    ({ text }) => error_like.test(text) && !pointers.test(text) && !/^\s|^Traceback\b/.test(text),
  );
  return found && { line: clipped(found.text) };
}

/** Some lines list everything that would have been right. */
function clipped(text: string): string {
  const line = text.trim();
  return line.length > line_characters_max ? `${line.slice(0, line_characters_max - 1)}…` : line;
}

/** Without the tracebacks of single requests: their clients were told, and the engine went on. */
function withoutRequests(lines: readonly LogLine[]): LogLine[] {
  const kept: LogLine[] = [];
  /** Of each process that is in such a traceback, whether its exception was named. */
  const skipped = new Map<string, boolean>();
  for (const line of lines) {
    const isNamed = skipped.get(line.source);
    // A traceback ends with the line at the margin that names the exception; chained ones go on after an empty line.
    const isInside = /^(\s|$|Traceback\b|The above exception|During handling|[|+]\s)/.test(line.text);
    if (of_a_request.test(line.text)) skipped.set(line.source, false);
    else if (isNamed === undefined) kept.push(line);
    else if (isInside) continue;
    else if (!isNamed && exception.test(line.text)) skipped.set(line.source, true);
    else {
      skipped.delete(line.source);
      kept.push(line);
    }
  }
  return kept;
}
