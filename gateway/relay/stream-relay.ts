import { writeEvents } from '../../host/write-events.ts';
import type { ClientResponse } from './client-response.ts';
import { errorOf, type StreamError } from './error-event.ts';
import { chunkOf } from './journal/chunk.ts';
import type { EventRewriter, StreamJournal } from './journal/journal.ts';
import { EventSplitter } from './sse-events.ts';
import { StreamChoices } from './stream-choices.ts';
import { findFinishReason, findUsage, readUsage, type TokenUsage } from './usage.ts';
import { hasNoChoices, type UsageMember, usageMember, withNullUsage, withoutUsage } from './usage-member.ts';

/** One event of a model is a few hundred bytes, with all log-probabilities some ten thousand. */
const event_bytes_max = 8 * 1024 * 1024;
const done = 'data: [DONE]';
const doneNoSpace = 'data:[DONE]';
const usageKey = Buffer.from('"usage"');
const choicesKey = '"choices"';
const responsesEnds = ['response.completed', 'response.failed', 'response.incomplete'];

export interface StreamRelayOptions {
  /** Whether usage is for the client, or only for the ledger: then no chunk has a word of it. */
  passUsage: boolean;
  /** Whether the gateway had the replica say in every chunk what was used so far: a client that leaves pays for it. */
  continuousUsage?: boolean;
  /** How a complete stream ends: with `data: [DONE]`, or with a terminal event of the responses API. */
  ending: 'done' | 'responses';
  /** Choices that it has, of all prompts together and to each prompt. */
  choices: number;
  choices_each: number;
  /** Status of the answer that it began with. */
  status: number;
  /** Runs once, before the first bytes go to the client. */
  writeHead: () => void;
  /**
   * Whether another replica may go on with it now. Then the client need not see an event in which this one says that it
   * failed.
   */
  isContinuable: () => boolean;
  /** Takes note of what goes to the client; absent where nobody could go on anyway. */
  journal?: StreamJournal | undefined;
}

/**
 * One answer stream on its way to the client. Bytes pass unchanged, in whole events; the events are looked at
 * only for usage, finish reason and the ending, which is held back until the ledger has the request. Where a
 * replica fails, the stream can be resumed with the events of another.
 */
export class StreamRelay {
  readonly #response: ClientResponse;
  readonly #options: StreamRelayOptions;
  /** Where there are several; of one, the last event tells. */
  readonly #choices: StreamChoices | undefined;
  #splitter = this.#newSplitter();
  #rewrite: EventRewriter | undefined;
  /** The replica failed, and the client does not see it: what still comes of this replica is of no use. */
  #replicaError: StreamError | undefined;
  /**
   * What goes to the client of the current chunk: bytes [from, to). It begins where events were sent or dropped,
   * and is moved together in place where parts of events are cut out, so that a chunk stays one write.
   */
  #from = 0;
  #to = 0;
  #usageAt = -1;
  #ok = true;
  /** Something was written. */
  #begun = false;
  #ending: Buffer | undefined;
  /** The last event that carried a choice, for its finish reason. */
  #lastBytes: Buffer | undefined;
  #lastStart = 0;
  #lastEnd = 0;
  /** Events sent to the client; each carries a token or a few. */
  events_sent = 0;
  #usage: TokenUsage | undefined;
  /** A later one, not read yet: most are replaced before anybody asks. */
  #usageText: string | undefined;
  /** An error event that went to the client. */
  error: StreamError | undefined;
  /** The replica has sent all that it was asked for, which was a part of the stream. */
  partEnded = false;

  constructor(response: ClientResponse, options: StreamRelayOptions) {
    this.#response = response;
    this.#options = options;
    if (options.choices > 1) this.#choices = new StreamChoices(options.choices, options.choices_each);
  }

  get status(): number {
    return this.#options.status;
  }

  /** Whether the ending has arrived; `finish` then sends it. */
  get ended(): boolean {
    return this.#ending !== undefined;
  }

  /** What the replica said of its own failure, in an event that the client did not get. */
  get replicaError(): StreamError | undefined {
    return this.#replicaError;
  }

  /** What the replica said last of what was used: of the whole stream, else of each of its choices. */
  get usage(): TokenUsage | undefined {
    if (this.#usageText !== undefined) {
      this.#usage = readUsage(this.#usageText) ?? this.#usage;
      this.#usageText = undefined;
    }
    return this.#usage ?? this.#choices?.usage;
  }

  get finishReason(): string | undefined {
    return this.#lastBytes && findFinishReason(this.#lastBytes, this.#lastStart, this.#lastEnd);
  }

  /** The stream goes on with the events of another replica; half an event of the old one is forgotten. */
  resume(rewrite?: EventRewriter): void {
    this.#splitter = this.#newSplitter();
    this.#rewrite = rewrite;
    this.#replicaError = undefined;
    this.partEnded = false;
  }

  /**
   * Takes bytes of the replica; false asks it to pause until the client's `drain`. Throws where an event is too large.
   */
  push(chunk: Buffer): boolean {
    if (this.#ending || this.#replicaError || this.partEnded) return true;
    this.#from = this.#to = 0;
    this.#ok = true;
    // A partial event is scanned again with its rest: offsets below are of the joined buffer.
    this.#usageAt = -2;
    const looked = this.#splitter.push(chunk);
    if (looked === false) throw new Error(`an event of the stream is larger than ${event_bytes_max} bytes`);
    this.#flush(looked.bytes);
    return this.#ok;
  }

  /** What a last event lacks that is whole but for its blank line; undefined where there is none. */
  get missingEnd(): Buffer | undefined {
    const rest = this.#splitter.rest.toString();
    const isWhole = [done, doneNoSpace].includes(rest.trim()) || chunkOf(rest) !== undefined;
    return isWhole ? Buffer.from(rest.endsWith('\n') ? '\n' : '\n\n') : undefined;
  }

  /**
   * The replica's answer ended well. Where it ended without the ending its API prescribes but each choice has its
   * finish reason, the ending is made up for.
   */
  upstreamEnded(): 'complete' | 'broken' {
    if (this.#ending) return 'complete';
    const isFinished = this.#choices ? this.#choices.finished : this.finishReason !== undefined;
    if (this.#options.ending === 'done' && isFinished) {
      // Half an event behind the last whole one would make the ending unreadable.
      this.#ending = Buffer.from(`${done}\n\n`);
      return 'complete';
    }
    return 'broken';
  }

  /** Says to whatever lies between here and the client that the stream lives, though nothing of it comes. */
  keepAlive(): void {
    if (this.#response.headersSent && !this.#ending)
      this.#response.write(': it goes on as soon as a replica is there\n\n');
  }

  /** Sends the ending; the request is in the ledger by now. */
  finish(): void {
    this.#first();
    this.#response.end(this.#ending);
  }

  /**
   * Ends a stream that cannot be completed. What is left of a half-sent event is dropped, so the client can read this
   * one.
   */
  fail(errorEvent: string): void {
    this.#first();
    this.#response.end(errorEvent);
  }

  #newSplitter(): EventSplitter {
    return new EventSplitter((bytes, start, end) => this.#event(bytes, start, end), event_bytes_max);
  }

  #event(bytes: Buffer, start: number, end: number): void {
    if (this.#ending || this.#replicaError || this.partEnded) return;
    const isEnding = this.#rewrite !== undefined && this.#isEnding(bytes, start, end);
    if (isEnding && this.#rewrite!.more?.() === true) {
      this.partEnded = true;
      return;
    }
    if (!this.#rewrite || isEnding) {
      this.#take(bytes, start, end);
      return;
    }
    this.#flush(bytes);
    const written = this.#rewrite(bytes, start, end);
    this.#from = this.#to = 0;
    this.#usageAt = -2;
    if (written.length > 0) this.#take(written, 0, written.length);
    this.#flush(written);
    this.#from = this.#to = end;
    this.#usageAt = -2;
  }

  #take(bytes: Buffer, start: number, end: number): void {
    if (this.#isEnding(bytes, start, end)) {
      this.#flush(bytes);
      // A copy: the chunk may be large, and it waits for the ledger.
      this.#ending = Buffer.from(bytes.subarray(start, end));
      if (this.#options.ending === 'responses')
        this.#usage = findUsage(this.#ending, 0, this.#ending.length, 2);
      return;
    }
    const error = errorOf(bytes, start, end);
    if (error) {
      this.#flush(bytes);
      if (error.replica_failed && (!this.#response.headersSent || this.#options.isContinuable())) {
        this.#replicaError = error;
        return;
      }
      this.error = error;
      this.#keep(bytes, start, end);
      return;
    }
    const begin = this.#options.journal?.see?.(bytes, start, end) ?? start;
    if (begin === end) return;
    // What follows the part that was taken out stays where it was, what stood before it has moved.
    if (begin !== start) this.#usageAt = -2;
    this.#takeChunk(bytes, begin, end);
  }

  #takeChunk(bytes: Buffer, start: number, end: number): void {
    let begin = start;
    const isOfChoice = this.#choices?.see(bytes, start, end) === true;
    if (this.#usageAt === -2) this.#usageAt = bytes.indexOf(usageKey, start);
    if (this.#usageAt !== -1 && this.#usageAt < end) {
      const at = this.#usageAt;
      this.#usageAt = bytes.indexOf(usageKey, end);
      const { ending, passUsage, continuousUsage } = this.#options;
      const member = ending === 'done' ? usageMember(bytes, start, end, at) : undefined;
      if (member && continuousUsage && !member.isNull) {
        if (!isOfChoice) this.#usageText = bytes.toString('latin1', member.value, member.end);
        begin = this.#withoutContinuousUsage(bytes, start, end, member);
        if (begin === -1) return;
      }
      const usage = member && begin === start && !member.isNull ? findUsage(bytes, start, end) : undefined;
      if (member?.isNull && !passUsage) begin = withoutUsage(bytes, start, member);
      if (usage) {
        if (!isOfChoice) {
          this.#usageText = undefined;
          this.#usage = usage;
        }
        if (carriesNothingElse(bytes.toString('utf8', start, end))) {
          if (!this.#options.passUsage) return;
          this.#keep(bytes, start, end);
          return;
        }
        if (findFinishReason(bytes, start, end) === undefined) {
          this.#note(bytes, start, end);
          return;
        }
      }
    }
    const length = this.#note(bytes, begin, end);
    this.#keepLast(bytes, this.#to - length, this.#to);
  }

  /** Returns where the event begins without what only the gateway asked for; −1 where nothing of it is left. */
  #withoutContinuousUsage(bytes: Buffer, start: number, end: number, member: UsageMember): number {
    const { passUsage } = this.#options;
    if (!hasNoChoices(bytes, start, end))
      return passUsage ? withNullUsage(bytes, start, member) : withoutUsage(bytes, start, member);
    // The last chunk, which the client asked for or not.
    if (passUsage) this.#keep(bytes, start, end);
    return -1;
  }

  /** Sends an event, without what is meant for the gateway. Returns the length of what is left of it. */
  #note(bytes: Buffer, start: number, end: number): number {
    this.events_sent++;
    const { journal } = this.#options;
    const cut = journal ? journal.take(bytes, start, end) : -1;
    if (cut === -1) {
      this.#keep(bytes, start, end);
      return end - start;
    }
    this.#keep(bytes, start, cut);
    this.#keep(bytes, journal!.cut_end, end);
    return end - start - (journal!.cut_end - cut);
  }

  /** Adds bytes [start, end) to what goes to the client. */
  #keep(bytes: Buffer, start: number, end: number): void {
    if (this.#from === this.#to) this.#from = this.#to = start;
    if (this.#to !== start) bytes.copyWithin(this.#to, start, end);
    this.#to += end - start;
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

  #flush(bytes: Buffer): void {
    if (this.#from === this.#to) return;
    const part = this.#from === 0 && this.#to === bytes.length ? bytes : bytes.subarray(this.#from, this.#to);
    this.#from = this.#to;
    this.#first();
    this.#ok = writeEvents(this.#response, part, this.#begun);
    this.#begun = true;
  }

  #first(): void {
    if (!this.#response.headersSent) this.#options.writeHead();
  }
}

/** Whether an event is the chunk that `include_usage` adds: usage, and an empty list of choices. */
function carriesNothingElse(event: string): boolean {
  if (!event.includes(choicesKey)) return false;
  return chunkOf(event)?.choices?.length === 0;
}
