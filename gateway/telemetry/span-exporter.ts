import { request } from 'undici';
import type { GatewayLog } from '../log.ts';
import { type OtlpSource, otlpTraces, type Span } from './otlp.ts';

export interface SpanExporterOptions {
  /** Full URL, `…/v1/traces`. */
  url: string;
  /** Of every request to it; may be secret. */
  headers: Readonly<Record<string, string>>;
  source: OtlpSource;
  log: GatewayLog;
  /** Between two requests. Lower: spans show sooner; higher: fewer requests. Default: 5 s, as OpenTelemetry's own. */
  interval_ms?: number | undefined;
}

/** Spans of one request to the receiver. */
const batch_max = 512;
/** Spans that wait in memory, about 1 kB each; beyond it new ones are dropped. Higher: a longer outage is outlived. */
const waiting_max = 4096;
const answer_ms = 10_000;
/** Lower: a log that says it more often; higher: later news. */
const complain_ms = 60_000;
/** OTLP: what may be tried again. */
const retryable = new Set([429, 502, 503, 504]);

/**
 * Sends spans to an OTLP/HTTP receiver, some at a time, when nobody waits for it. What the receiver does not take for a
 * while waits; what it refuses is dropped. Requests are never held up, and fail for no reason of their traces.
 */
export class SpanExporter {
  readonly #options: SpanExporterOptions;
  readonly #timer: NodeJS.Timeout;
  #waiting: Span[] = [];
  #sending: Promise<void> | undefined;
  #dropped = 0;
  #complained_ms = Number.NEGATIVE_INFINITY;

  constructor(options: SpanExporterOptions) {
    this.#options = options;
    this.#timer = setInterval(() => void this.#send(), options.interval_ms ?? 5000);
    this.#timer.unref();
  }

  add(span: Span): void {
    if (this.#waiting.length >= waiting_max) {
      this.#dropped++;
      this.#complain('too many spans wait for it');
      return;
    }
    this.#waiting.push(span);
    if (this.#waiting.length === batch_max) void this.#send();
  }

  /** Sends what waits, as far as the receiver takes it. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    await this.#sending;
    await this.#send();
  }

  #send(): Promise<void> {
    this.#sending ??= this.#sendAll().finally(() => {
      this.#sending = undefined;
    });
    return this.#sending;
  }

  async #sendAll(): Promise<void> {
    while (this.#waiting.length > 0) {
      const batch = this.#waiting.splice(0, batch_max);
      if (await this.#taken(batch)) continue;
      this.#waiting = [...batch, ...this.#waiting].slice(0, waiting_max);
      return;
    }
  }

  /** @returns false where they may be sent again */
  async #taken(batch: readonly Span[]): Promise<boolean> {
    const { url, headers, source } = this.#options;
    try {
      const { statusCode, body } = await request(url, {
        method: 'POST',
        headers: { ...headers, 'content-type': 'application/json' },
        body: otlpTraces(source, batch),
        signal: AbortSignal.timeout(answer_ms),
      });
      await body.dump();
      if (statusCode < 300) return true;
      this.#complain(`it answers ${statusCode}`);
      if (retryable.has(statusCode)) return false;
    } catch (error) {
      this.#complain((error as Error).message);
      return false;
    }
    this.#dropped += batch.length;
    return true;
  }

  #complain(reason: string): void {
    const now_ms = performance.now();
    if (now_ms - this.#complained_ms < complain_ms) return;
    this.#complained_ms = now_ms;
    const { url, log } = this.#options;
    const { origin, pathname } = new URL(url);
    log.warn({ receiver: origin + pathname, reason, dropped: this.#dropped }, 'traces are not taken');
  }
}
