import type { ServerResponse } from 'node:http';
import { EventSplitter } from './sse-events.ts';
import { findFinishReason, findUsage, type TokenUsage } from './usage.ts';

/** One event of a model is a few hundred bytes, with all log-probabilities some ten thousand. */
const eventBytes = 8 * 1024 * 1024;
const done = 'data: [DONE]';
const doneNoSpace = 'data:[DONE]';
const usageKey = Buffer.from('"usage"');
const choicesKey = '"choices"';
const responsesEnds = ['response.completed', 'response.failed', 'response.incomplete'];

export interface StreamRelayOptions {
  /** Whether the chunk that only carries usage is for the client, or only for the ledger. */
  passUsage: boolean;
  /** How a complete stream ends: with `data: [DONE]`, or with a terminal event of the responses API. */
  ending: 'done' | 'responses';
  /** Runs once, before the first bytes go to the client: headers are to be written now. */
  onFirst: () => void;
  /** Runs once, when the ending has arrived; `finish` then sends it. */
  onEnding: () => void;
}

/**
 * One answer stream on its way to the client. Bytes pass unchanged, in whole events; the events are looked at
 * only for usage, finish reason and the ending, which is held back until the ledger has the request. It knows
 * what the client has been sent, which is what continuing on another replica will need.
 */
export class StreamRelay {
  readonly #response: ServerResponse;
  readonly #options: StreamRelayOptions;
  readonly #splitter = new EventSplitter((bytes, start, end) => this.#event(bytes, start, end), eventBytes);
  /** Bytes of the current chunk before this offset are sent or dropped. */
  #sentTo = 0;
  #usageAt = -1;
  #ok = true;
  #ending: Buffer | undefined;
  /** The last event that carried a choice, for its finish reason. */
  #lastBytes: Buffer | undefined;
  #lastStart = 0;
  #lastEnd = 0;
  /** Events sent to the client; each carries a token or a few. */
  events_sent = 0;
  bytes_sent = 0;
  usage: TokenUsage | undefined;

  constructor(response: ServerResponse, options: StreamRelayOptions) {
    this.#response = response;
    this.#options = options;
  }

  /** Whether the stream is complete as far as its events say. */
  get ended(): boolean {
    return this.#ending !== undefined;
  }

  get finishReason(): string | undefined {
    return this.#lastBytes && findFinishReason(this.#lastBytes, this.#lastStart, this.#lastEnd);
  }

  /** Takes bytes of the replica; false asks it to pause until the client's `drain`. Throws where an event is too large. */
  push(chunk: Buffer): boolean {
    if (this.#ending) return true;
    this.#sentTo = 0;
    this.#ok = true;
    // A partial event is scanned again with its rest: offsets below are of the joined buffer.
    this.#usageAt = -2;
    const looked = this.#splitter.push(chunk);
    if (looked === false) throw new Error(`an event of the stream is larger than ${eventBytes} bytes`);
    if (!this.#ending) this.#send(looked.bytes, looked.whole);
    return this.#ok;
  }

  /**
   * The replica's answer ended well. Where it ended without the ending its API prescribes but with a finish
   * reason, the ending is made up for.
   */
  upstreamEnded(): 'complete' | 'broken' {
    if (this.#ending) return 'complete';
    if (this.#options.ending === 'done' && this.finishReason !== undefined) {
      this.#ending = Buffer.concat([this.#splitter.rest, Buffer.from(`${done}\n\n`)]);
      this.#options.onEnding();
      return 'complete';
    }
    return 'broken';
  }

  /** Sends the ending; the request is in the ledger by now. */
  finish(): void {
    this.#first();
    this.#response.end(this.#ending);
  }

  /** Ends a stream that cannot be completed. What is left of a half-sent event is dropped, so the client can read this one. */
  fail(errorEvent: string): void {
    this.#first();
    this.#response.end(errorEvent);
  }

  #event(bytes: Buffer, start: number, end: number): void {
    if (this.#ending) return;
    if (this.#isEnding(bytes, start, end)) {
      this.#send(bytes, start);
      // A copy: the chunk may be large, and it waits for the ledger.
      this.#ending = Buffer.from(bytes.subarray(start, end));
      if (this.#options.ending === 'responses') this.usage = findUsage(this.#ending);
      this.#options.onEnding();
      return;
    }
    if (this.#usageAt === -2) this.#usageAt = bytes.indexOf(usageKey, start);
    if (this.#usageAt !== -1 && this.#usageAt < end) {
      const usage = this.#options.ending === 'done' ? findUsage(bytes, start, end) : undefined;
      this.#usageAt = bytes.indexOf(usageKey, end);
      if (usage) {
        this.usage = usage;
        if (!this.#options.passUsage && carriesNothingElse(bytes.toString('utf8', start, end))) {
          this.#send(bytes, start);
          this.#sentTo = end;
          return;
        }
        this.events_sent++;
        if (findFinishReason(bytes, start, end) !== undefined) this.#keepLast(bytes, start, end);
        return;
      }
    }
    this.events_sent++;
    this.#keepLast(bytes, start, end);
  }

  #keepLast(bytes: Buffer, start: number, end: number): void {
    this.#lastBytes = bytes;
    this.#lastStart = start;
    this.#lastEnd = end;
  }

  #isEnding(bytes: Buffer, start: number, end: number): boolean {
    if (this.#options.ending === 'done') {
      if (end - start > 24) return false;
      const text = bytes.toString('latin1', start, end).trim();
      return text === done || text === doneNoSpace;
    }
    const head = bytes.toString('latin1', start, Math.min(end, start + 120));
    return responsesEnds.some(
      (type) => head.includes(`"type":"${type}"`) || head.startsWith(`event: ${type}`),
    );
  }

  #send(bytes: Buffer, to: number): void {
    if (to <= this.#sentTo) return;
    const part = this.#sentTo === 0 && to === bytes.length ? bytes : bytes.subarray(this.#sentTo, to);
    this.#sentTo = to;
    this.#first();
    this.bytes_sent += part.length;
    this.#ok = this.#response.write(part);
  }

  #first(): void {
    if (!this.#response.headersSent) this.#options.onFirst();
  }
}

/** Whether an event is the chunk that `include_usage` adds: usage, and an empty list of choices. */
function carriesNothingElse(event: string): boolean {
  if (!event.includes(choicesKey)) return false;
  const data = event
    .split(/\r?\n/)
    .filter((line) => line.startsWith('data:'))
    .map((line) => line.slice(5))
    .join('\n');
  try {
    const { choices } = JSON.parse(data) as { choices?: unknown };
    return Array.isArray(choices) && choices.length === 0;
  } catch (error) {
    if (error instanceof SyntaxError) return false;
    throw error;
  }
}
