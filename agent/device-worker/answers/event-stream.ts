import type { ServerResponse } from 'node:http';

/**
 * Server-sent events to one client. Where the client does not read, nothing is written: the answer keeps
 * what it has in one piece (bounded by the context of the model) until the client goes on, and a client
 * that stays silent for too long is given up.
 */
export class EventStream {
  readonly #response: ServerResponse;
  readonly #headers: Record<string, string>;
  readonly #resume: () => void;
  readonly #dropSlowClient: () => void;
  readonly #slow_client_ms: number;
  #blocked = false;
  #timer: NodeJS.Timeout | undefined;

  constructor(options: {
    response: ServerResponse;
    headers: Record<string, string>;
    slow_client_ms: number;
    /** The client reads again. */
    resume: () => void;
    /** The client did not read for `slow_client_ms`. */
    dropSlowClient: () => void;
  }) {
    this.#response = options.response;
    this.#headers = options.headers;
    this.#resume = options.resume;
    this.#dropSlowClient = options.dropSlowClient;
    this.#slow_client_ms = options.slow_client_ms;
    this.#response.on('close', () => clearTimeout(this.#timer));
    this.#response.on('drain', () => {
      this.#blocked = false;
      clearTimeout(this.#timer);
      this.#resume();
    });
  }

  get open(): boolean {
    return this.#response.headersSent;
  }

  /** False while the client has not taken what was written. */
  get writable(): boolean {
    return !this.#blocked;
  }

  begin(): void {
    this.#response.writeHead(200, {
      ...this.#headers,
      'content-type': 'text/event-stream; charset=utf-8',
      'cache-control': 'no-cache',
      'x-accel-buffering': 'no',
    });
    this.#response.flushHeaders();
  }

  write(value: unknown): void {
    this.#send(`data: ${JSON.stringify(value)}\n\n`);
  }

  /** @param trailers fields behind the last event */
  end(trailers: Record<string, string>): void {
    clearTimeout(this.#timer);
    this.#response.addTrailers(trailers);
    this.#response.end('data: [DONE]\n\n');
  }

  /** An error after the beginning: an event of its own, and no [DONE]. */
  fail(envelope: unknown): void {
    clearTimeout(this.#timer);
    this.#response.end(`data: ${JSON.stringify(envelope)}\n\n`);
  }

  #send(text: string): void {
    if (this.#response.write(text) || this.#blocked) return;
    this.#blocked = true;
    this.#timer = setTimeout(this.#dropSlowClient, this.#slow_client_ms);
  }
}
