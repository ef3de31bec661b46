/** What OpenAI's clients know errors by, whichever engine they are of. */
import type { HpcserveError } from '../../../spec/errors/error.ts';

/** Codes that OpenAI's own clients know. */
const openAiCodes: Record<string, string> = {
  E_CONTEXT_LENGTH: 'context_length_exceeded',
  E_MODEL_NOT_SERVED: 'model_not_found',
  E_REQUEST_PARAMETER: 'unknown_parameter',
  E_REQUEST_INVALID: 'invalid_value',
  E_REQUEST_UNSUPPORTED: 'unsupported_value',
  E_WORKER_BUSY: 'rate_limit_exceeded',
  E_SLO_REFUSED: 'rate_limit_exceeded',
};

export function openAiCode({ code }: HpcserveError): string {
  return openAiCodes[code] ?? code;
}

export function openAiType(http_status: number): string {
  if (http_status === 429) return 'rate_limit_error';
  return http_status < 500 ? 'invalid_request_error' : 'server_error';
}
