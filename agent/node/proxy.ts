/** Passes OpenAI requests on to the engine of a unit and its answer back, unchanged, as fast as the slower side takes it. */
import { type IncomingMessage, type OutgoingHttpHeaders, request, type ServerResponse } from 'node:http';
import { HpcserveError } from '../../spec/errors/error.ts';
import { limits } from '../../spec/wire.ts';
import { answerError } from './answers.ts';
import { connectionTo } from './engine-request.ts';
import type { Upstream } from './serving-process.ts';

/** Headers of one connection, not of the message (RFC 9110 §7.6.1), and those the agent answers for itself. */
const not_passed_on = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'authorization',
  'host',
  'expect',
]);

export interface ProxiedRequest {
  incoming: IncomingMessage;
  outgoing: ServerResponse;
  upstream: Upstream;
  /** Headers added to the answer. */
  answer_headers: OutgoingHttpHeaders;
  /** Runs once, when both sides are done with each other. */
  onEnd(): void;
}

/**
 * A client that goes away ends the engine's work on its request; an engine that ends in the middle of an answer
 * ends the client's connection, so that nobody takes half an answer for a whole one.
 */
export function proxyRequest({ incoming, outgoing, upstream, answer_headers, onEnd }: ProxiedRequest): void {
  const declared = Number(incoming.headers['content-length'] ?? 0);
  if (declared > limits.body_bytes) {
    answerError(outgoing, tooLarge(), 413);
    incoming.resume();
    onEnd();
    return;
  }
  const passed = request({
    ...connectionTo(upstream),
    method: incoming.method,
    path: incoming.url,
    // A connection a request: on this host that is cheap, and no request meets one that is being closed.
    agent: false,
    headers: {
      ...passedOn(incoming.headers),
      host: 'localhost',
      ...(upstream.key === undefined ? {} : { authorization: `Bearer ${upstream.key}` }),
    },
  });
  passed.setNoDelay(true);

  let received_bytes = 0;
  incoming.on('data', (chunk: Buffer) => {
    received_bytes += chunk.length;
    if (received_bytes <= limits.body_bytes) return;
    incoming.unpipe(passed);
    passed.destroy();
    if (!outgoing.headersSent) answerError(outgoing, tooLarge(), 413);
    incoming.resume();
  });
  incoming.pipe(passed);

  let answer: IncomingMessage | undefined;
  passed.once('response', (response) => {
    answer = response;
    outgoing.writeHead(response.statusCode ?? 502, { ...passedOn(response.headers), ...answer_headers });
    outgoing.flushHeaders();
    response.pipe(outgoing);
    // Cut off in the middle: no proper end may follow.
    response.once('aborted', () => outgoing.destroy());
    response.once('error', () => outgoing.destroy());
  });
  passed.once('error', (error) => {
    if (outgoing.headersSent) outgoing.destroy();
    else if (!outgoing.destroyed) {
      const failure = new HpcserveError('E_AGENT_UPSTREAM', {
        what: 'the engine of this session did not answer',
        because: error.message,
      });
      answerError(outgoing, failure, undefined, answer_headers);
    }
  });
  outgoing.once('close', () => {
    if (!outgoing.writableFinished) {
      answer?.destroy();
      passed.destroy();
    }
    onEnd();
  });
}

function passedOn(headers: IncomingMessage['headers']): OutgoingHttpHeaders {
  const named = new Set(
    String(headers.connection ?? '')
      .split(',')
      .map((name) => name.trim().toLowerCase()),
  );
  return Object.fromEntries(
    Object.entries(headers).filter(([name]) => !not_passed_on.has(name) && !named.has(name)),
  );
}

function tooLarge(): HpcserveError {
  return new HpcserveError('E_AGENT_REQUEST', {
    what: `the request body is larger than ${limits.body_bytes} bytes`,
    try: 'send a smaller body',
  });
}
