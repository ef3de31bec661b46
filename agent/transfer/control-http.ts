/** Messages about transfers as HTTP requests over the mesh's TLS: of whom they are is known before they are read. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { z } from 'zod';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { KvTarget } from './kv-target.ts';
import { message_bytes_max } from './limits.ts';
import type { KvMessage } from './messages.ts';

/** Brings a message to a peer's session and nowhere else, and its answer back. */
export type KvPost = (
  body: string,
  signal: AbortSignal,
) => Promise<{ status: number; body: AsyncIterable<Buffer> }>;

const errorSchema = z.object({
  code: z.string(),
  what: z.string(),
  because: z.array(z.string()),
  try: z.array(z.string()),
  details: z.record(z.string(), z.unknown()),
});

/** @param peer session id that the connection proved */
export async function answerKvRequest(
  target: KvTarget,
  peer: string,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  try {
    const body = await readBounded(request);
    const message = parse(body);
    send(response, 200, await target.answer(peer, message));
  } catch (error) {
    const failure = HpcserveError.from(error);
    if (!request.complete) response.setHeader('connection', 'close');
    send(response, failure.http_status, { error: failure.toJSON() });
  }
}

/** @throws HpcserveError as the peer says; E_KV_TRANSFER: it does not answer in time */
export async function askKvPeer(post: KvPost, message: KvMessage, limit_ms: number): Promise<unknown> {
  let status: number;
  let text: string;
  try {
    const answer = await post(JSON.stringify(message), AbortSignal.timeout(limit_ms));
    status = answer.status;
    text = await readBounded(answer.body);
  } catch (error) {
    const because = (error as Error).message;
    throw new HpcserveError('E_KV_TRANSFER', {
      what: `a peer did not answer '${message.kind}' about keys and values`,
      because,
    });
  }
  if (status === 200) return parse(text);
  const failure = z.object({ error: errorSchema }).safeParse(jsonOf(text));
  if (failure.success) throw HpcserveError.fromJSON(failure.data.error);
  throw new HpcserveError('E_KV_TRANSFER', {
    what: `a peer answered '${message.kind}' with status ${status}`,
    because: text.slice(0, 200),
  });
}

/** Agents between the two say in plain words what went wrong. */
function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function send(response: ServerResponse, status: number, body: object): void {
  const text = JSON.stringify(body);
  response.writeHead(status, {
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(text),
  });
  response.end(text);
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new HpcserveError('E_KV_MESSAGE', {
      what: 'a message about keys and values is no JSON',
      because: (error as Error).message,
    });
  }
}

async function readBounded(stream: AsyncIterable<Buffer>): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of stream) {
    bytes += chunk.length;
    if (bytes > message_bytes_max)
      throw new HpcserveError('E_KV_MESSAGE', {
        what: `a message about keys and values has more than ${message_bytes_max} bytes`,
      });
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}
