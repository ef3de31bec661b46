/** Recorded traces as requests: the public formats, told apart by their columns. */
import { HpcserveError } from '../../spec/errors/error.ts';
import { type RequestColumns, type RequestRow, requestColumns } from './requests.ts';

/** Names of the three columns; times are in `seconds` each, or dates. */
interface TraceFormat {
  name: string;
  time: string;
  input: string;
  output: string;
  seconds: number | 'date';
}

const formats: readonly TraceFormat[] = [
  {
    name: 'Azure LLM inference trace',
    time: 'TIMESTAMP',
    input: 'ContextTokens',
    output: 'GeneratedTokens',
    seconds: 'date',
  },
  { name: 'Mooncake', time: 'timestamp', input: 'input_length', output: 'output_length', seconds: 1e-3 },
  { name: 'BurstGPT', time: 'Timestamp', input: 'Request tokens', output: 'Response tokens', seconds: 1 },
  { name: 'LLMServingSim', time: 'queued_ts', input: 'input_toks', output: 'output_toks', seconds: 1 },
  { name: 'hpcserve', time: 'arrival_s', input: 'input_tokens', output: 'output_tokens', seconds: 1 },
];

/**
 * CSV with a head line, or JSON lines. Rows without tokens on either side (failed requests) are left out.
 * @throws E_SIMULATION_INPUT with the line where a row cannot be read, or the formats known.
 */
export function parseTrace(text: string, name: string): RequestColumns {
  const lines = text.split(/\r?\n/);
  const jsonLines = text.trimStart().startsWith('{');
  const head = jsonLines ? [] : (lines[0] ?? '').split(',').map((cell) => cell.trim());
  const columns = jsonLines ? Object.keys(objectOf(lines[0] ?? '', name, 1)) : head;
  const format = formats.find(({ time, input, output }) =>
    [time, input, output].every((key) => columns.includes(key)),
  );
  if (format === undefined)
    throw new HpcserveError('E_SIMULATION_INPUT', {
      what: `${name} is no trace that can be read`,
      because: `its columns are ${columns.slice(0, 8).join(', ') || '(none)'}`,
      try: formats.map((known) => `${known.name}: ${known.time}, ${known.input}, ${known.output}`),
    });
  const rows: RequestRow[] = [];
  for (const [index, line] of lines.entries()) {
    if (line.trim() === '' || (!jsonLines && index === 0)) continue;
    const row = jsonLines
      ? objectOf(line, name, index + 1)
      : Object.fromEntries(line.split(',').map((cell, at) => [head[at] ?? '', cell.trim()]));
    const arrival_s =
      format.seconds === 'date'
        ? Date.parse(dateText(String(row[format.time]))) / 1e3
        : Number(row[format.time]) * format.seconds;
    const input_tokens = Number(row[format.input]);
    const output_tokens = Number(row[format.output]);
    if (![arrival_s, input_tokens, output_tokens].every(Number.isFinite))
      throw new HpcserveError('E_SIMULATION_INPUT', {
        what: `line ${index + 1} of ${name} cannot be read as a request`,
        because: `${format.time} ${row[format.time]}, ${format.input} ${row[format.input]}, ${format.output} ${row[format.output]}`,
      });
    if (input_tokens >= 1 && output_tokens >= 1) rows.push({ arrival_s, input_tokens, output_tokens });
  }
  return requestColumns(rows);
}

/** Azure writes `2023-11-16 18:17:03.9799600`, in UTC: seven digits, of which three can be kept. */
function dateText(text: string): string {
  return `${text.replace(' ', 'T').replace(/(\.\d{3})\d*/, '$1')}Z`;
}

function objectOf(line: string, name: string, number: number): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(line);
    if (typeof value === 'object' && value !== null && !Array.isArray(value))
      return value as Record<string, unknown>;
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
  }
  throw new HpcserveError('E_SIMULATION_INPUT', { what: `line ${number} of ${name} is not a JSON object` });
}
