import { createHmac } from 'node:crypto';
import Database from 'better-sqlite3';
import { z } from 'zod';
import { prefixHash_bytes, type TraceRow, traceRowSchema } from '../../spec/trace.ts';
import { readablePath } from '../reader.ts';

interface Row {
  time_ms: number;
  model: string;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  cached_tokens: number | null;
  reasoning_tokens: number | null;
  ttft_ms: number | null;
  duration_ms: number;
  stream: number;
  status: number;
  parameters: string | null;
  prefix: Buffer | null;
}

export interface TraceQuery {
  since_ms?: number | undefined;
  until_ms?: number | undefined;
  /** Another one gives other ids: without it, two exports cannot be laid side by side, nor with the ledger. */
  secret: Buffer;
  /** Models get ids, too. */
  hidesModels?: boolean | undefined;
}

const parametersSchema = z.record(z.string(), z.number());

/**
 * Answered requests of one ledger, in the order of their arrival. Nothing of who asked is in them.
 *
 * @throws as `openLedgerReader`
 */
export function* exportTrace(path: string, query: TraceQuery): Generator<TraceRow> {
  const readable = readablePath(path);
  const db = new Database(readable.path, { readonly: true, fileMustExist: true, timeout: 500 });
  try {
    const rows = db
      .prepare(
        `SELECT time_ms, coalesce(served_model, model) AS model, prompt_tokens, completion_tokens, cached_tokens,
          reasoning_tokens, ttft_ms, duration_ms, stream, status, parameters, prefix
        FROM requests LEFT JOIN traces USING (sequence)
        WHERE time_ms >= ? AND time_ms < ? AND served_model IS NOT NULL ORDER BY time_ms, sequence`,
      )
      .iterate(query.since_ms ?? 0, query.until_ms ?? Number.MAX_SAFE_INTEGER) as Iterable<Row>;
    for (const row of rows) yield traceRowOf(row, query);
  } finally {
    db.close();
    readable.close();
  }
}

function traceRowOf(row: Row, { secret, hidesModels }: TraceQuery): TraceRow {
  const { model, prefix, parameters } = row;
  return traceRowSchema.parse({
    time_ms: row.time_ms,
    model: hidesModels ? `model-${idOf(secret, Buffer.from(model))}` : model,
    input_tokens: row.prompt_tokens ?? 0,
    output_tokens: row.completion_tokens ?? 0,
    cached_tokens: row.cached_tokens ?? undefined,
    reasoning_tokens: row.reasoning_tokens ?? undefined,
    ttft_ms: row.ttft_ms ?? undefined,
    e2e_ms: row.duration_ms,
    stream: row.stream === 1,
    status: row.status,
    parameters: parametersSchema.parse(JSON.parse(parameters ?? '{}')),
    buckets: prefix === null ? [] : bucketsOf(prefix, secret),
  });
}

function bucketsOf(prefix: Buffer, secret: Buffer): string[] {
  const buckets: string[] = [];
  for (let at = 0; at + prefixHash_bytes <= prefix.length; at += prefixHash_bytes)
    buckets.push(idOf(secret, prefix.subarray(at, at + prefixHash_bytes)));
  return buckets;
}

function idOf(secret: Buffer, bytes: Buffer): string {
  return createHmac('sha256', secret)
    .update(bytes)
    .digest('hex')
    .slice(0, 2 * prefixHash_bytes);
}
