import type { OutgoingHttpHeaders, ServerResponse } from 'node:http';
import type { HpcserveError } from '../../spec/errors/error.ts';
import type { OpenAiError } from '../../spec/wire.ts';
import { openAiCode, openAiType } from '../device-worker/http/openai-words.ts';

export function answerJson(
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: OutgoingHttpHeaders = {},
): void {
  const text = JSON.stringify(body);
  response.writeHead(status, {
    'content-type': 'application/json; charset=utf-8',
    'content-length': Buffer.byteLength(text),
    ...headers,
  });
  response.end(text);
}

/** An error in OpenAI's envelope. */
export function answerError(
  response: ServerResponse,
  error: HpcserveError,
  status: number = error.http_status,
  headers: OutgoingHttpHeaders = {},
): void {
  answerJson(response, status, openAiError(error, status), headers);
}

export function openAiError(error: HpcserveError, status: number): OpenAiError {
  const message = [error.message, ...error.because].join(': ');
  return { error: { message, type: openAiType(status), param: null, code: openAiCode(error) } };
}
