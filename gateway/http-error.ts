import type { HpcserveError } from '../spec/errors/error.ts';
import { headers, type OpenAiError } from '../spec/wire.ts';
import type { ClientResponse } from './relay/client-response.ts';

/** Where OpenAI has a code of its own, clients look for that one. */
const openAiCodes: Partial<Record<HpcserveError['code'], string>> = {
  E_REQUEST_KEY: 'invalid_api_key',
  E_MODEL_UNKNOWN: 'model_not_found',
  E_MODEL_EXCLUDED: 'model_not_found',
  E_REPLICA_BUSY: 'rate_limit_exceeded',
  E_KEY_RATE: 'rate_limit_exceeded',
  E_KEY_BUDGET: 'insufficient_quota',
  E_REQUEST_INVALID: 'invalid_value',
};

/** The registry's code of an error that the gateway itself answers with. */
export const errorCodeHeader = headers.error_code;

/** An error in OpenAI's envelope. What the message says is for the client; causes underneath stay in logs. */
export function errorEnvelope(error: HpcserveError): OpenAiError {
  const because = error.because.length > 0 ? `: ${error.because.join('; ')}` : '';
  const said = `${error.message}${because}`;
  const { param } = error.details;
  return {
    error: {
      message: `${said}${/[.?!]$/.test(said) ? '' : '.'} Try: ${error.try.join('; ')}`,
      type: errorType(error.http_status),
      param: typeof param === 'string' ? param : null,
      code: openAiCodes[error.code] ?? error.code,
    },
  };
}

/** The event with which a stream ends that cannot be completed. */
export function errorEvent(error: HpcserveError): string {
  return `data: ${JSON.stringify(errorEnvelope(error))}\n\n`;
}

function errorType(status: number): string {
  if (status === 401) return 'authentication_error';
  if (status === 403) return 'permission_error';
  if (status === 429) return 'rate_limit_error';
  return status < 500 ? 'invalid_request_error' : 'server_error';
}

/**
 * Answers with an error.
 *
 * @param extra header pairs, such as `retry-after`
 */
export function sendError(
  response: ClientResponse,
  error: HpcserveError,
  request_id: string,
  extra: readonly string[] = [],
): void {
  response.end(writeErrorHead(response, error, request_id, extra));
}

/** The same, whole for the client, and not ended before the result is called: until then its connection stays. */
export function sendErrorOpen(
  response: ClientResponse,
  error: HpcserveError,
  request_id: string,
  extra: readonly string[],
): () => void {
  response.write(writeErrorHead(response, error, request_id, extra));
  return () => response.end();
}

/** @returns the body that is to follow */
function writeErrorHead(
  response: ClientResponse,
  error: HpcserveError,
  request_id: string,
  extra: readonly string[],
): Buffer {
  const body = Buffer.from(JSON.stringify(errorEnvelope(error)));
  response.writeHead(error.http_status, [
    'content-type',
    'application/json',
    'content-length',
    String(body.length),
    headers.request_id,
    request_id,
    errorCodeHeader,
    error.code,
    ...extra,
  ]);
  return body;
}

/** The same answer as raw bytes, for a connection on which no request could be read; the connection ends with it. */
export function rawErrorAnswer(error: HpcserveError, reasonPhrase: string): string {
  const body = JSON.stringify(errorEnvelope(error));
  return [
    `HTTP/1.1 ${error.http_status} ${reasonPhrase}`,
    'content-type: application/json',
    `content-length: ${Buffer.byteLength(body)}`,
    `${errorCodeHeader}: ${error.code}`,
    'connection: close',
    '',
    body,
  ].join('\r\n');
}
