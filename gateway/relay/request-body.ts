import type { PromptKeys } from '../../solver/routing/candidate.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { topLevelSpan } from './json-span.ts';
import { promptKeysOf } from './prompt-text.ts';

/** What the gateway reads of a request's body; the rest is the replica's business. */
export interface ParsedRequest {
  model: string;
  stream: boolean;
  /** Whether the client itself asked for usage at the end of a stream. */
  wantsUsage: boolean;
  /** What travels to the replica: the client's own bytes, or those with usage asked for. */
  body: Buffer;
  prompt: PromptKeys | undefined;
}

/** Endpoints whose streams report usage only where `stream_options.include_usage` asks for it. */
export type StreamDialect = 'completions' | 'responses' | 'none';

/**
 * Reads model and stream out of a body, and asks the replica for usage where the client did not.
 *
 * Throws E_REQUEST_JSON, E_REQUEST_INVALID.
 */
export function parseRequest(body: Buffer, dialect: StreamDialect): ParsedRequest {
  let json: unknown;
  try {
    json = JSON.parse(body.toString());
  } catch (error) {
    throw new HpcserveError('E_REQUEST_JSON', {
      what: body.length === 0 ? 'the request has no body' : 'the body of the request is not valid JSON',
      because: (error as SyntaxError).message,
    });
  }
  if (typeof json !== 'object' || json === null || Array.isArray(json)) {
    throw invalid('the body must be a JSON object', undefined);
  }
  const { model, stream, stream_options } = json as Record<string, unknown>;
  if (typeof model !== 'string' || model === '') throw invalid('`model` must name a model', 'model');
  if (stream !== undefined && stream !== null && typeof stream !== 'boolean') {
    throw invalid('`stream` must be true or false', 'stream');
  }
  const prompt = dialect === 'none' ? undefined : promptKeysOf(json as Record<string, unknown>);
  if (stream !== true) return { model, stream: false, wantsUsage: true, body, prompt };
  if (dialect !== 'completions') return { model, stream: true, wantsUsage: true, body, prompt };
  if (stream_options !== undefined && stream_options !== null) {
    if (typeof stream_options !== 'object' || Array.isArray(stream_options)) {
      throw invalid('`stream_options` must be an object', 'stream_options');
    }
    const asked = (stream_options as Record<string, unknown>).include_usage;
    if (asked === true) return { model, stream: true, wantsUsage: true, body, prompt };
  }
  return { model, stream: true, wantsUsage: false, body: withUsage(body, stream_options), prompt };
}

/** The same bytes but for `stream_options`, so that large numbers, order and spelling of the rest stay as sent. */
function withUsage(body: Buffer, streamOptions: unknown): Buffer {
  if (streamOptions === undefined) {
    const close = body.lastIndexOf('}');
    return Buffer.concat([
      body.subarray(0, close),
      Buffer.from(',"stream_options":{"include_usage":true}'),
      body.subarray(close),
    ]);
  }
  const span = topLevelSpan(body, 'stream_options');
  const options = { ...(streamOptions as object | null), include_usage: true };
  return Buffer.concat([
    body.subarray(0, span.start),
    Buffer.from(JSON.stringify(options)),
    body.subarray(span.end),
  ]);
}

function invalid(what: string, param: string | undefined): HpcserveError {
  return new HpcserveError('E_REQUEST_INVALID', { what, details: param === undefined ? {} : { param } });
}
