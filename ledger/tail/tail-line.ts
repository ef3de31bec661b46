/**
 * A line of the tail: the records of one commit, as JSON. What records share with others (key, model, session) is
 * written once a file, and named by its number from there on.
 */
import { wholeUnits } from '../hour-sums.ts';
import type { RequestRecord, SessionFacts } from '../record.ts';
import { SeriesIndex, type SeriesMembers } from '../series-index.ts';

/** Records that waited while nothing could be written; see `gaps`. */
export interface Gap {
  since_ms: number;
  until_ms: number;
  requests: number;
  reason: string;
}

type Optional<T> = T | null;

/** Session (its number, or none), key, and so on. */
type SeriesLine = [
  session: Optional<number>,
  key_id: string,
  limits_key_id: Optional<string>,
  user: Optional<string>,
  project: Optional<string>,
  endpoint: string,
  model: Optional<string>,
  served_model: Optional<string>,
  precision: Optional<string>,
];

type RequestLine = [
  series: number,
  request_id: string,
  time_ms: number,
  asked_model: Optional<string>,
  status: number,
  stream: 0 | 1,
  attempts: number,
  prompt_tokens: Optional<number>,
  completion_tokens: Optional<number>,
  cached_tokens: Optional<number>,
  reasoning_tokens: Optional<number>,
  ttft_us: Optional<number>,
  duration_us: number,
  device_us: Optional<number>,
  energy_mj: Optional<number>,
  energy_estimated: 0 | 1,
  finish_reason: Optional<string>,
  error_code: Optional<string>,
  counts_only: 0 | 1,
  trace?: [parameters: string, prefix: string],
];

/** Without the trace. */
const requestMembers = 19;

interface Line {
  sessions?: SessionFacts[] | undefined;
  series?: SeriesLine[] | undefined;
  requests: RequestLine[];
  gap?: Gap | undefined;
}

/** Writes lines of one file. */
export class TailEncoder {
  readonly #sessions = new Map<SessionFacts, number>();
  readonly #series = new SeriesIndex();
  /** First named in the last line. */
  #newSessions: SessionFacts[] = [];
  #newSeries: SeriesMembers[] = [];

  /** A line, with its end. */
  encode(records: readonly RequestRecord[], gap?: Gap): string {
    this.#newSessions = [];
    this.#newSeries = [];
    const requests = records.map((record) => requestLine(this.#seriesOf(record), record));
    const line: Line = {
      sessions: this.#newSessions.length > 0 ? this.#newSessions : undefined,
      series:
        this.#newSeries.length > 0 ? this.#newSeries.map((series) => this.#seriesLine(series)) : undefined,
      requests,
      gap,
    };
    return `${JSON.stringify(line)}\n`;
  }

  /** The last line was not written. */
  takeBack(): void {
    for (const session of this.#newSessions) this.#sessions.delete(session);
    for (const series of this.#newSeries) this.#series.remove(series);
  }

  #seriesOf(record: RequestRecord): number {
    const known = this.#series.find(record);
    if (known !== undefined) return known;
    const { session } = record;
    if (session && !this.#sessions.has(session)) {
      this.#sessions.set(session, this.#sessions.size);
      this.#newSessions.push(session);
    }
    const number = this.#series.size;
    this.#newSeries.push(this.#series.add(record, number));
    return number;
  }

  #seriesLine(of: SeriesMembers): SeriesLine {
    return [
      of.session ? this.#sessions.get(of.session)! : null,
      of.key_id,
      of.limits_key_id ?? null,
      of.user ?? null,
      of.project ?? null,
      of.endpoint,
      // A name that a client made up is of its request alone.
      of.session ? of.model : null,
      of.served_model ?? null,
      of.precision ?? null,
    ];
  }
}

function requestLine(series: number, record: RequestRecord): RequestLine {
  const { ttft_us, duration_us, device_us, energy_mj } = wholeUnits(record);
  const { trace, counts_only } = record;
  const line: RequestLine = [
    series,
    counts_only ? '' : record.request_id,
    record.time_ms,
    record.session === undefined ? record.model : null,
    record.status,
    record.stream ? 1 : 0,
    record.attempts,
    record.prompt_tokens ?? null,
    record.completion_tokens ?? null,
    record.cached_tokens ?? null,
    record.reasoning_tokens ?? null,
    ttft_us ?? null,
    duration_us,
    record.device_s === undefined ? null : device_us,
    record.energy_j === undefined ? null : energy_mj,
    record.energy_estimated ? 1 : 0,
    record.finish_reason ?? null,
    record.error_code ?? null,
    counts_only ? 1 : 0,
  ];
  if (trace && !counts_only) line.push([trace.parameters, trace.prefix.toString('base64')]);
  return line;
}

/** By its shape: a schema that looks at each value takes longer than all else that is done with a record. */
function isLine(line: unknown): line is Line {
  if (typeof line !== 'object' || line === null || !('requests' in line) || !Array.isArray(line.requests))
    return false;
  return line.requests.every((request) => Array.isArray(request) && request.length >= requestMembers);
}

export interface DecodedLine {
  records: RequestRecord[];
  gap?: Gap | undefined;
}

/** Reads the lines of one file, from its first on. */
export class TailDecoder {
  readonly #sessions: SessionFacts[] = [];
  readonly #series: SeriesMembers[] = [];

  /** @throws SyntaxError where it is not a line as it was written */
  decode(text: string): DecodedLine {
    const line = this.#learn(text);
    return { records: line.requests.map((each) => this.#recordOf(each)), gap: line.gap };
  }

  /** Takes what the lines behind this one name; nobody wants its records. @throws as `decode` */
  skip(text: string): void {
    this.#learn(text);
  }

  #learn(text: string): Line {
    const line: unknown = JSON.parse(text);
    if (!isLine(line)) throw new SyntaxError('not a line of the tail');
    if (line.sessions) this.#sessions.push(...line.sessions);
    for (const each of line.series ?? []) this.#addSeries(each);
    return line;
  }

  #addSeries(line: SeriesLine): void {
    const [session, key_id, limits_key_id, user, project, endpoint, model, served_model, precision] = line;
    this.#series.push({
      session: session === null ? undefined : this.#sessions[session],
      key_id,
      limits_key_id: limits_key_id ?? undefined,
      user: user ?? undefined,
      project: project ?? undefined,
      endpoint,
      model: model ?? '',
      served_model: served_model ?? undefined,
      precision: precision ?? undefined,
    });
  }

  #recordOf(line: RequestLine): RequestRecord {
    const series = this.#series[line[0]];
    if (!series) throw new SyntaxError('a line of the tail names what no line before it has');
    const asked_model = line[3];
    const ttft_us = line[11];
    const device_us = line[13];
    const energy_mj = line[14];
    const trace = line[19];
    // Member by member: objects that are made by spreading are slow ones.
    return {
      session: series.session,
      key_id: series.key_id,
      limits_key_id: series.limits_key_id,
      user: series.user,
      project: series.project,
      endpoint: series.endpoint,
      served_model: series.served_model,
      precision: series.precision,
      model: asked_model ?? series.model,
      request_id: line[1],
      time_ms: line[2],
      status: line[4],
      stream: line[5] === 1,
      attempts: line[6],
      prompt_tokens: line[7] ?? undefined,
      completion_tokens: line[8] ?? undefined,
      cached_tokens: line[9] ?? undefined,
      reasoning_tokens: line[10] ?? undefined,
      ttft_ms: ttft_us === null ? undefined : ttft_us / 1000,
      duration_ms: line[12] / 1000,
      device_s: device_us === null ? undefined : device_us / 1e6,
      energy_j: energy_mj === null ? undefined : energy_mj / 1000,
      energy_estimated: line[15] === 1,
      finish_reason: line[16] ?? undefined,
      error_code: line[17] ?? undefined,
      counts_only: line[18] === 1,
      trace: trace && { parameters: trace[0], prefix: Buffer.from(trace[1], 'base64') },
    };
  }
}
