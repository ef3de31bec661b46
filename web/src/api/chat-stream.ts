/** One chat completion, as it comes: events of `POST /v1/chat/completions` with `stream`. */
import { ask, envelopeOf, GatewayError, UnreachableError } from './client.ts';

export interface ChatTurn {
  role: 'system' | 'user' | 'assistant';
  content: string;
}

/** Left out where the model's own defaults are wanted. */
export interface ChatParameters {
  temperature?: number;
  top_p?: number;
  max_tokens?: number;
  seed?: number;
}

export interface ChatUsage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number } | null;
}

export interface ChatPiece {
  content?: string;
  reasoning?: string;
  finish_reason?: string;
  usage?: ChatUsage;
}

interface Chunk {
  choices?: {
    delta?: { content?: string | null; reasoning_content?: string | null; reasoning?: string | null };
    finish_reason?: string | null;
  }[];
  usage?: ChatUsage | null;
  error?: { message: string; code?: string | null };
}

/** Who answers, as the headers say. */
export interface AnsweredBy {
  node?: string;
  engine?: string;
  precision?: string;
  device?: string;
  model?: string;
}

export interface ChatRequest {
  secret: string;
  model: string;
  messages: readonly ChatTurn[];
  parameters: ChatParameters;
  signal: AbortSignal;
  onHead(by: AnsweredBy): void;
}

/** @throws GatewayError, UnreachableError; what an abort throws */
export async function* chatStream(request: ChatRequest): AsyncGenerator<ChatPiece> {
  const { secret, model, messages, parameters, signal } = request;
  const response = await ask('v1/chat/completions', {
    secret,
    method: 'POST',
    body: { model, messages, stream: true, stream_options: { include_usage: true }, ...parameters },
    signal,
  });
  request.onHead(answeredBy(response.headers));
  for await (const data of eventsOf(response, signal)) {
    if (data === '[DONE]') return;
    const chunk = JSON.parse(data) as Chunk;
    if (chunk.error) {
      const { message, code } = envelopeOf(data) ?? { message: 'the stream ended with an error', code: '' };
      throw new GatewayError(200, code, message);
    }
    yield pieceOf(chunk);
  }
  throw new UnreachableError('the stream ended before its answer did');
}

function pieceOf({ choices, usage }: Chunk): ChatPiece {
  const piece: ChatPiece = {};
  const { delta, finish_reason } = choices?.[0] ?? {};
  if (delta?.content) piece.content = delta.content;
  const reasoning = delta?.reasoning_content ?? delta?.reasoning;
  if (reasoning) piece.reasoning = reasoning;
  if (finish_reason) piece.finish_reason = finish_reason;
  if (usage) piece.usage = usage;
  return piece;
}

function answeredBy(headers: Headers): AnsweredBy {
  const by: AnsweredBy = {};
  for (const field of ['node', 'engine', 'precision', 'device', 'model'] as const) {
    const value = headers.get(`x-hpcserve-${field}`);
    if (value !== null) by[field] = value;
  }
  return by;
}

/** The data of server-sent events; comments are left out. */
async function* eventsOf(response: Response, signal: AbortSignal): AsyncGenerator<string> {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read().catch((error: unknown) => {
      if (signal.aborted) throw error;
      throw new UnreachableError('the connection to the gateway broke off');
    });
    if (done) return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop() ?? '';
    for (const line of lines) if (line.startsWith('data:')) yield line.slice(5).trim();
  }
}
