import { HpcserveError } from '../../spec/errors/error.ts';
import { errorCodeHeader, errorEnvelope } from '../http-error.ts';
import type { Replica } from '../routing/replica.ts';
import type { SessionLink } from '../session-link.ts';
import type { ClientAnswer } from './client-answer.ts';
import { isMeshRefusal } from './replica-refusal.ts';

/** An error with which a replica answered, of which nothing has been passed on. */
export interface ReplicaError {
  status: number;
  /** Of its head. */
  pairs: readonly string[];
  body: Buffer;
  /** In its envelope; undefined where the body is none of OpenAI's. */
  code: string | undefined;
}

/** What the client gets in the place of a replica's error. */
interface PassedError {
  status: number;
  error_code: string;
  send(client: ClientAnswer): void;
}

/** An error of the engine in OpenAI's envelope passes unchanged; anything else is put into one. */
export function passedError(
  { status, pairs, body, code }: ReplicaError,
  replica: Replica<SessionLink>,
): PassedError {
  const answeredBy = replica.answerHeaders;
  if (code !== undefined && !isMeshRefusal(status)) {
    const send = (client: ClientAnswer): void => {
      client.writeHead({ status, pairs, answeredBy }, body.length);
      client.response.end(body);
    };
    return { status, error_code: code, send };
  }
  const error = new HpcserveError('E_REPLICA_FAILED', {
    what: `the replica on ${replica.session.facts.node} answered with status ${status}`,
    because: body.length > 0 ? `it said: ${body.toString('utf8', 0, 500)}` : 'it said nothing more',
  });
  const passed = isMeshRefusal(status) ? error.http_status : status;
  const send = (client: ClientAnswer): void => {
    const text = Buffer.from(JSON.stringify(errorEnvelope(error)));
    const own = ['content-type', 'application/json', errorCodeHeader, error.code];
    client.writeHead({ status: passed, pairs: own, answeredBy }, text.length);
    client.response.end(text);
  };
  return { status: passed, error_code: error.code, send };
}

/** What OpenAI's envelope says of an error; undefined where a body is none. */
export function readEnvelope(body: Buffer): { code: string } | undefined {
  try {
    const { error } = JSON.parse(body.toString()) as { error?: unknown };
    if (typeof error !== 'object' || error === null || !('message' in error)) return undefined;
    const code = 'code' in error ? error.code : undefined;
    return { code: typeof code === 'string' ? code.slice(0, 64) : 'upstream_error' };
  } catch {
    return undefined;
  }
}

/** A replica was lost in the middle of an answer that the client has begun to get. */
export function midStreamError(
  replica: Replica<SessionLink>,
  model: string,
  because: readonly string[],
): HpcserveError {
  return new HpcserveError('E_REPLICA_BROKE_OFF', {
    what: `the replica of ${model} on ${replica.session.facts.node} ended in the middle of its answer`,
    because: [...because],
  });
}
