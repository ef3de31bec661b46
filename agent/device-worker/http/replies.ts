import type { ServerResponse } from 'node:http';
import type { HpcserveError } from '../../../spec/errors/error.ts';
import {
  type BegunAnswer,
  continuation,
  headers as headerNames,
  type OpenAiError,
} from '../../../spec/wire.ts';
import { openAiCode, openAiType } from './openai-words.ts';

/** Seconds after which to try again, where the error does not say. */
const retry_after_s = 1;

function errorBody(error: HpcserveError): OpenAiError {
  const { param } = error.details;
  const reasons = error.because.length > 0 ? ` (${error.because.join('; ')})` : '';
  const said = `${error.message}${reasons}`;
  return {
    error: {
      message: `${said}${/[.?!]$/.test(said) ? '' : '.'} Try: ${error.try.join('; ')}`,
      type: openAiType(error.http_status),
      param: typeof param === 'string' ? param : null,
      code: openAiCode(error),
    },
  };
}

/** The same as the last event of a stream: gateways read where the answer goes on. */
export function streamErrorBody(error: HpcserveError): object {
  const { moved } = error.details;
  const said = errorBody(error);
  return moved === undefined ? said : { error: { ...said.error, [continuation.moved]: moved } };
}

export function sendJson(
  response: ServerResponse,
  status: number,
  value: unknown,
  headers: Record<string, string | number> = {},
): void {
  if (response.headersSent || response.destroyed) return;
  const body = Buffer.from(JSON.stringify(value));
  response.writeHead(status, {
    ...headers,
    'content-type': 'application/json; charset=utf-8',
    'content-length': body.length,
  });
  response.end(body);
}

/** @param begun what there is of the answer, for a gateway that has it completed elsewhere */
export function replyError(
  response: ServerResponse,
  error: HpcserveError,
  headers: Record<string, string | number> = {},
  begun?: BegunAnswer,
): void {
  const status = error.http_status;
  const wait = error.details.retry_after_s;
  const again: Record<string, number> =
    status === 503 || status === 429
      ? { 'retry-after': typeof wait === 'number' ? wait : retry_after_s }
      : {};
  const { refused, moved } = error.details;
  // For gateways, which may make room for it elsewhere.
  const need: Record<string, string> =
    refused === undefined ? {} : { [headerNames.refused]: JSON.stringify(refused) };
  const gone: Record<string, string> =
    moved === undefined ? {} : { [headerNames.moved]: JSON.stringify(moved) };
  const said = errorBody(error);
  const body = begun ? { error: { ...said.error, [continuation.begun]: begun } } : said;
  sendJson(response, status, body, { ...headers, ...again, ...need, ...gone });
}
