/** Lines of our JSON logs as people read them. */

const levels: Readonly<Record<number, string>> = {
  10: 'trace',
  20: 'debug',
  30: 'info',
  40: 'warn',
  50: 'error',
  60: 'fatal',
};

/** What every line has, or what stands elsewhere in it. */
const dull = new Set(['level', 'time', 'msg', 'pid', 'hostname', 'node', 'launch', 'error', 'err']);

/** The message of a log line alone: JSON lines (pino) give their `msg`, others are as they are. */
export function messageOf(line: string): string {
  const record = recordOf(line);
  return typeof record?.msg === 'string' ? record.msg : line;
}

/** `14:03:07 warn  message key=value …`, with the reasons of an error; other lines as they are. */
export function readableLine(line: string): string {
  const record = recordOf(line);
  if (typeof record?.msg !== 'string') return line;
  const time = typeof record.time === 'number' ? `${clock(record.time)} ` : '';
  const level = levels[Number(record.level)] ?? 'info';
  const facts = Object.entries(record)
    .filter(([key]) => !dull.has(key))
    .map(([key, value]) => ` ${key}=${typeof value === 'string' ? value : JSON.stringify(value)}`);
  return `${time}${level.padEnd(5)} ${record.msg}${reasonsOf(record.error ?? record.err)}${facts.join('')}`;
}

function reasonsOf(error: unknown): string {
  if (typeof error !== 'object' || error === null) return error === undefined ? '' : `: ${String(error)}`;
  const { because, message } = error as { because?: unknown; message?: unknown };
  if (Array.isArray(because)) return because.length > 0 ? `: ${because.join('; ')}` : '';
  return typeof message === 'string' ? `: ${message}` : '';
}

function recordOf(line: string): Record<string, unknown> | undefined {
  if (!line.startsWith('{')) return undefined;
  try {
    return JSON.parse(line) as Record<string, unknown>;
  } catch (error) {
    // A line of an engine that begins so, or one that was cut: shown as it is.
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

function clock(time_ms: number): string {
  return new Date(time_ms).toTimeString().slice(0, 8);
}
