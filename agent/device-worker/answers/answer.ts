/**
 * Sends one answer: streamed or whole. The same code serves chat and text completions; they differ in what
 * a choice makes of its text and in the names of their objects.
 */

import type { ServerResponse } from 'node:http';
import type { SampledToken } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { type BegunAnswer, type ContinueRequest, continuation, headers } from '../../../spec/wire.ts';
import { formatTimings } from '../../../spec/worker-timings.ts';
import { replyError, sendJson, streamErrorBody } from '../http/replies.ts';
import type { Models } from '../models.ts';
import { EventStream } from './event-stream.ts';
import { Generation, type GenerationListener, type GenerationRequest } from './generation.ts';
import { mergeEvents, type TextEvent } from './text-stream.ts';
import { usageOf } from './usage.ts';

/**
 * Of an answer that is given away before its end, so much is told. Lower: longer ones are begun anew; higher: gateways
 * hold more.
 */
const begun_tokens_max = 65_536;

export interface ChoiceDelta {
  token_ids: number[];
  finish?: string;
  /** Nothing to send, unless it is the end. */
  empty: boolean;
}

/** How an answer is written in OpenAI's words. */
export interface AnswerKind<D extends ChoiceDelta> {
  id: string;
  object: string;
  chunk_object: string;
  choices: {
    take(event: TextEvent): D;
    takePrompt?(logprobs: SampledToken[]): void;
    /** All of them so far. */
    readonly token_ids: readonly number[];
    complete(withTokenIds: boolean): Record<string, unknown>;
  }[];
  /** A chunk's choice, before its end. */
  chunk(index: number, delta: D): Record<string, unknown>;
  /** The chunk's choice that opens one, where the kind has such. */
  opening?(index: number): Record<string, unknown>;
  /** The chunk's choice that ends one. */
  closing(index: number, finish: string): Record<string, unknown>;
}

export interface AnswerContext {
  models: Models;
  response: ServerResponse;
  headers: Record<string, string>;
  token_ids: boolean;
  /** Who asks wants to know where the time went. */
  timings: boolean;
  /** Who asks for an answer that comes whole has it computed elsewhere where it has moved. */
  may_move: boolean;
  /** See `headers.arrived_kv`. */
  arrived_kv: string | undefined;
  /** As in `headers.cache_scope`. */
  cache_scope: string | undefined;
  slow_client_ms: number;
  /** Throws where so many sequences more are too many. */
  admit(sequences: number): void;
}

/** @returns once the answer is under way; it ends by itself, and with the client's connection. */
export function answer<D extends ChoiceDelta>(
  request: GenerationRequest,
  kind: AnswerKind<D>,
  context: AnswerContext,
): void {
  const { parameters } = request;
  const { response, models } = context;
  context.admit(request.prompts.length * parameters.n);
  const listener = parameters.stream
    ? new StreamedAnswer(request, kind, context)
    : new WholeAnswer(request, kind, context);
  const generation = new Generation(models, request, listener);
  listener.generation = generation;
  response.on('close', () => {
    if (!response.writableFinished) generation.cancel();
  });
  generation.start((choice, event) => {
    kind.choices[choice]!.take(event);
  });
}

/**
 * Whether an answer may move, as far as whoever asks lets it, and what has come before it. Log probabilities of one
 * that comes whole are nowhere but here.
 */
export function howItMoves(
  { stream }: GenerationRequest['parameters'],
  { token_ids, may_move, arrived_kv }: AnswerContext,
  withLogprobs: boolean,
): Pick<GenerationRequest, 'movable' | 'may_move' | 'arrived_kv'> {
  const movable = stream ? token_ids : may_move && !withLogprobs;
  return { movable, may_move: stream ? token_ids : may_move, arrived_kv };
}

function base(kind: { id: string }, object: string, request: GenerationRequest) {
  return {
    id: kind.id,
    object,
    created: request.parameters.continued?.created ?? Math.floor(Date.now() / 1000),
    model: request.model.config.name,
  };
}

/** What a gateway needs to have an answer continued elsewhere. */
function extension(generation: Generation, request: GenerationRequest) {
  return {
    [continuation.prompt_tokens]: generation.prompt_tokens,
    [continuation.seed]: request.parameters.sampling.seed,
    ...(request.rendered_ms === undefined ? {} : { [continuation.rendered_ms]: request.rendered_ms }),
    [continuation.prompt_digest]: generation.prompt_digest,
    [continuation.cached_tokens]: Math.min(generation.cached_tokens, generation.prompt_tokens),
  };
}

/** What another replica makes the whole answer of; undefined where nothing of it is there. */
function begunAnswer(
  generation: Generation,
  request: GenerationRequest,
  kind: AnswerKind<ChoiceDelta>,
): BegunAnswer | undefined {
  const { parameters, rendered_ms } = request;
  const { id, created } = base(kind, kind.object, request);
  const begun = kind.choices.map((choice) => ({ token_ids: choice.token_ids.slice() }));
  const tokens = begun.reduce((sum, { token_ids }) => sum + token_ids.length, 0);
  if (tokens === 0 || tokens > begun_tokens_max) return undefined;
  const { prompt_digest, prompt_tokens } = generation;
  const cached_tokens = Math.min(generation.cached_tokens, prompt_tokens);
  const made: ContinueRequest = { choices: begun, id, created, prompt_digest, cached_tokens };
  if (rendered_ms !== undefined) made.rendered_ms = rendered_ms;
  return { seed: parameters.sampling.seed, continue: made };
}

function timingsOf(generation: Generation, { timings }: AnswerContext): Record<string, string> {
  return timings ? { [headers.timings]: formatTimings(generation.timings) } : {};
}

/** An answer that is sent at its end, in one piece. */
class WholeAnswer<D extends ChoiceDelta> implements GenerationListener {
  generation!: Generation;
  readonly #request: GenerationRequest;
  readonly #kind: AnswerKind<D>;
  readonly #context: AnswerContext;

  constructor(request: GenerationRequest, kind: AnswerKind<D>, context: AnswerContext) {
    this.#request = request;
    this.#kind = kind;
    this.#context = context;
  }

  admitted(): void {}

  prompt(choice: number, logprobs: SampledToken[]): void {
    this.#kind.choices[choice]!.takePrompt?.(logprobs);
  }

  event(choice: number, event: TextEvent): void {
    this.#kind.choices[choice]!.take(event);
  }

  finished(): void {
    const { generation } = this;
    const kind = this.#kind;
    const request = this.#request;
    const context = this.#context;
    sendJson(
      context.response,
      200,
      {
        ...base(kind, kind.object, request),
        choices: kind.choices.map((choice) => choice.complete(context.token_ids)),
        usage: usageOf(generation),
        ...(context.token_ids ? extension(generation, request) : {}),
      },
      { ...context.headers, ...timingsOf(generation, context) },
    );
  }

  failed(error: HpcserveError): void {
    const { response, headers: fields } = this.#context;
    const request = this.#request;
    const givesAway = error.code === 'E_REQUEST_MOVED' || error.code === 'E_WORKER_DRAINING';
    const begun =
      givesAway && request.movable ? begunAnswer(this.generation, request, this.#kind) : undefined;
    replyError(response, error, fields, begun);
  }
}

/** An answer that is sent as it comes: what the client has not taken yet is merged, and sent once it reads again. */
class StreamedAnswer<D extends ChoiceDelta> implements GenerationListener {
  generation!: Generation;
  readonly #request: GenerationRequest;
  readonly #kind: AnswerKind<D>;
  readonly #context: AnswerContext;
  readonly #stream: EventStream;
  readonly #head: ReturnType<typeof base>;
  /** What each choice has to say that the client has not taken yet. */
  readonly #pending: (TextEvent | undefined)[] = [];
  /** Token ids whose text is still withheld. */
  readonly #unsent: number[][] = [];
  readonly #opened = new Set<number>();
  #first = true;
  #complete = false;
  #over = false;

  constructor(request: GenerationRequest, kind: AnswerKind<D>, context: AnswerContext) {
    this.#request = request;
    this.#kind = kind;
    this.#context = context;
    this.#head = base(kind, kind.chunk_object, request);
    for (const [index, { opened }] of (request.parameters.continued?.choices ?? []).entries())
      if (opened) this.#opened.add(index);
    this.#stream = new EventStream({
      response: context.response,
      headers: context.headers,
      slow_client_ms: context.slow_client_ms,
      resume: () => this.#flush(),
      dropSlowClient: () => this.#dropSlowClient(),
    });
  }

  admitted(): void {
    this.#stream.begin();
    this.#flush();
  }

  prompt(choice: number, logprobs: SampledToken[]): void {
    this.#kind.choices[choice]!.takePrompt?.(logprobs);
  }

  event(choice: number, event: TextEvent): void {
    this.#pending[choice] = mergeEvents(this.#pending[choice], event);
    this.#flush();
  }

  finished(): void {
    this.#complete = true;
    this.#flush();
  }

  failed(error: HpcserveError): void {
    if (this.#over) return;
    this.#over = true;
    if (this.#stream.open) this.#stream.fail(streamErrorBody(error));
    else replyError(this.#context.response, error, this.#context.headers);
  }

  #flush(): void {
    // One prompt of several may be ahead while another can still be refused.
    if (this.#over || !this.#stream.open) return;
    for (let index = 0; index < this.#kind.choices.length && this.#stream.writable; index++) {
      const event = this.#pending[index];
      if (!event) continue;
      this.#pending[index] = undefined;
      this.#write(index, event);
    }
    if (!this.#complete || !this.#stream.writable || this.#pending.some((event) => event !== undefined))
      return;
    this.#over = true;
    if (this.#request.parameters.include_usage)
      this.#stream.write({ ...this.#head, choices: [], usage: usageOf(this.generation) });
    this.#stream.end(timingsOf(this.generation, this.#context));
  }

  #write(index: number, event: TextEvent): void {
    const kind = this.#kind;
    if (kind.opening && !this.#opened.has(index)) {
      this.#opened.add(index);
      this.#chunk(index, kind.opening(index), []);
    }
    const delta = kind.choices[index]!.take(event);
    let ids = [...(this.#unsent[index] ?? []), ...delta.token_ids];
    if (!delta.empty) {
      this.#chunk(index, kind.chunk(index, delta), ids);
      ids = [];
    }
    if (delta.finish !== undefined) this.#chunk(index, kind.closing(index, delta.finish), ids, true);
    else this.#unsent[index] = ids;
  }

  #chunk(
    index: number,
    choice: Record<string, unknown>,
    token_ids: readonly number[],
    finished = false,
  ): void {
    const { include_usage, continuous_usage } = this.#request.parameters;
    // Not spread: V8 11 gives each `{ ...head, more }` a hidden class of its own, at 3 µs.
    const chunk: Record<string, unknown> = Object.assign({}, this.#head, { choices: [choice] });
    if (include_usage) chunk.usage = continuous_usage ? usageOf(this.generation) : null;
    if (this.#context.token_ids) Object.assign(chunk, this.#extended(index, token_ids, finished));
    this.#stream.write(chunk);
    this.#first = false;
  }

  #extended(index: number, token_ids: readonly number[], finished: boolean): Record<string, unknown> {
    const { generation } = this;
    const request = this.#request;
    const withheld = token_ids.length === 0 ? 0 : generation.withheld(index);
    return {
      ...(this.#first ? extension(generation, request) : {}),
      ...(index === 0 ? {} : { [continuation.choice]: index }),
      ...(withheld === 0 ? {} : { [continuation.withheld]: withheld }),
      ...(finished ? { [continuation.finished]: true } : {}),
      [continuation.token_ids]: token_ids,
    };
  }

  #dropSlowClient(): void {
    this.#over = true;
    this.generation.cancel();
    const { slow_client_ms } = this.#context;
    this.#context.response.destroy(
      new HpcserveError('E_CLIENT_SLOW', { what: `the client did not read for ${slow_client_ms} ms` }),
    );
  }
}
