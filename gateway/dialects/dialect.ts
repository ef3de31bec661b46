/** What an API beside OpenAI's chat completions is to the gateway. */
import type { OpenAiError } from '../../spec/wire.ts';
import type { Endpoint } from '../relay/endpoints.ts';
import type { AnswerPart, Members } from './chat-form.ts';

/** A request of a dialect, as replicas understand it, and how what they say is told in the dialect. */
export interface TranslatedRequest {
  endpoint: Endpoint;
  /** The body for a replica. */
  body: Members;
  answer: DialectAnswer;
}

/** An answer that is kept, with what it goes on from. */
export interface KeptResponse {
  response: Members;
  /** Items of its request. */
  input: Members[];
  /** All items of the conversation, those of the answer included. */
  items: Members[];
}

/** What of the gateway a request may need that is turned into a chat. */
export interface ReadingContext {
  /** Longest sequence of the model. */
  context_tokens: number;
  /** Tokens of a chat's prompt as its model has them; undefined where that is not told. Absent: nobody can tell. */
  count?: ((chat: Members) => Promise<number | undefined>) | undefined;
  /** The answer that it goes on from. */
  earlier?: KeptResponse | undefined;
  /** Keeps its answer, for which the result waits, as long as it is worth it; absent: none is kept. */
  keep?: ((kept: KeptResponse) => Promise<void>) | undefined;
}

/** What began an answer, as the replica named it. */
export interface AnswerHead {
  model: string;
  /** Unix s. */
  created_s: number;
}

/**
 * One answer in a dialect. It is told all parts in their order, and keeps what the end needs. Each call returns what a
 * stream says then, which for an answer that comes whole is not sent.
 */
export interface DialectAnswer {
  /** `content-type` of a stream. */
  readonly stream_type: string;
  /** What a stream may say that no client takes for an answer; absent: nothing. */
  readonly comment?: (text: string) => string;
  begin(head: AnswerHead): string;
  take(part: AnswerPart): string;
  /** Behind the last part. */
  end(): string;
  /** Instead of the end. */
  fail(error: OpenAiError['error']): string;
  /** The answer as an object, behind its end. */
  whole(): Members;
  /** Behind its end: what the last bytes wait for, which never fails. Absent: they go at once. */
  readonly kept?: Promise<void> | undefined;
  /** An answer of the replica that is no chat: embeddings, counts of tokens. Absent: all are. */
  readonly translate?: (answer: Members) => Members;
}

export interface Dialect {
  path: string;
  /** @throws E_REQUEST_INVALID: what of the request cannot be said to a replica, by name */
  read(body: Members, context: ReadingContext): TranslatedRequest | Promise<TranslatedRequest>;
  /** The body of a refusal. */
  refusal(error: OpenAiError['error'], status: number, request_id: string): Members;
  /** Whether an engine has the API itself: then its own answers pass. */
  isSpokenBy?(engine: string | undefined): boolean;
  /** Whether the gateway keeps answers of this dialect: which one a request goes on from, and whether its own is. */
  readonly kept?: { earlierOf(body: Members): string | undefined; isKept(body: Members): boolean };
}

/** An event of a stream of server-sent events, with its type. */
export function typedEvent(type: string, data: Members): string {
  return `event: ${type}\ndata: ${JSON.stringify({ type, ...data })}\n\n`;
}
