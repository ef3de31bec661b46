import { type AnswerEvents, type HttpAnswerHead, HttpAnswerParser } from '../../host/http-answer-parser.ts';
import { type BodyPieces, bytesOf } from '../relay/body-edits.ts';
import type { SessionWay, WayEvents } from './session-way.ts';

/** Whom the answer to one request goes to. Exactly one of `onEnd` and `onError` is called, and then nothing more. */
export interface AnswerReceiver {
  onHead(head: HttpAnswerHead): void;
  /** False pauses the connection until `resume`. */
  onBody(bytes: Buffer): boolean;
  /** @param trailers names in lower case, each followed by its value */
  onEnd(trailers: readonly string[]): void;
  onError(error: Error): void;
}

export interface ConnectionOwner {
  /** The connection can take another request. */
  idle(connection: Connection): void;
  gone(connection: Connection): void;
}

/** Requests up to this size travel in one write together with their head; copying costs less than a second write. */
const one_write_bytes_max = 32 * 1024;
/**
 * Of larger ones, so much is encrypted at a time. Lower: other requests wait less; higher: fewer turns of the event
 * loop.
 */
const slice_bytes = 256 * 1024;

/**
 * A connection that was gone when it was used shows it within a round trip. Higher: slower links; lower: fewer requests
 * that ended their replica are sent there again.
 */
const stale_ms = 1000;

/** HTTP on one way to a session, and at most one request on it at a time. */
export class Connection implements AnswerEvents, WayEvents {
  #way: SessionWay | undefined;
  /** What is to be sent when the way has room again. */
  #more: (() => void) | undefined;
  readonly #owner: ConnectionOwner;
  readonly #parser = new HttpAnswerParser(this);
  #receiver: AnswerReceiver | undefined;
  #gone = false;
  #paused = false;
  /** The request is not sent whole yet. */
  #sending = false;
  /** Bytes came before the connection was open: whoever sent them is no server of HTTP. */
  #early = false;
  /** Requests it has been given. */
  #served = 0;
  #sent_ms = 0;
  /** Whether a byte of the present answer has come. */
  #answering = false;
  /** On the monotonic clock. */
  idle_since_ms = 0;

  constructor(owner: ConnectionOwner) {
    this.#owner = owner;
  }

  open(way: SessionWay): void {
    this.#way = way;
    if (this.#early) queueMicrotask(() => this.lost(new Error('it spoke before it was asked')));
  }

  /** Whether it may have been gone before the present request was sent: then nothing was computed. */
  get wasStale(): boolean {
    if (this.#answering || (this.#served < 2 && !this.#way!.kept)) return false;
    return performance.now() - this.#sent_ms < stale_ms;
  }

  /** Whether its request was sent after that time, on the monotonic clock, and nothing was answered yet. */
  waitsSince(time_ms: number): boolean {
    return !this.#answering && this.#sent_ms > time_ms;
  }

  /** Seconds an idle connection may live as the peer said; undefined where it said nothing. */
  get idle_s(): number | undefined {
    return this.#parser.idle_s;
  }

  /** @param head request line and fields, the empty line included */
  send(head: string, body: BodyPieces, receiver: AnswerReceiver): void {
    this.#receiver = receiver;
    this.#served++;
    this.#sent_ms = performance.now();
    this.#answering = false;
    this.#parser.expect();
    if (bytesOf(body) <= one_write_bytes_max) {
      let text = head;
      for (const piece of body) text += piece.toString('latin1');
      this.#way!.write(text);
      return;
    }
    this.#way!.write(head);
    this.#sending = true;
    this.#sendSlices(body, 0, 0);
  }

  /** From a place in the body on, as fast as the session takes it. */
  #sendSlices(body: BodyPieces, from: number, within: number): void {
    if (this.#gone) return;
    let at = within;
    for (let index = from; index < body.length; index++) {
      const piece = body[index]!;
      while (at < piece.length) {
        const slice = piece.subarray(at, at + slice_bytes);
        at += slice.length;
        if (this.#way!.write(slice)) continue;
        this.#more = () => this.#sendSlices(body, index, at);
        return;
      }
      at = 0;
    }
    this.#sending = false;
  }

  resume(): void {
    if (!this.#paused) return;
    this.#paused = false;
    this.#way!.resume();
  }

  drained(): void {
    const more = this.#more;
    this.#more = undefined;
    more?.();
  }

  /** Ends the connection; its receiver hears nothing more. */
  destroy(): void {
    this.#receiver = undefined;
    this.lost(new Error('given up'));
  }

  /** Ends the connection, and tells its receiver why. */
  fail(error: Error): void {
    this.lost(error);
  }

  onHead(head: HttpAnswerHead): void {
    this.#receiver?.onHead(head);
  }

  onBody(bytes: Buffer): void {
    if (!this.#receiver || this.#receiver.onBody(bytes)) return;
    this.#paused = true;
    this.#way!.pause();
  }

  onEnd(reusable: boolean, trailers: readonly string[]): void {
    const receiver = this.#receiver;
    this.#receiver = undefined;
    this.resume();
    // Who answers before it has the whole request may take the rest of it for the next.
    if (reusable && !this.#gone && !this.#sending) this.#owner.idle(this);
    else this.lost(new Error('the connection cannot be used again'));
    receiver?.onEnd(trailers);
  }

  read(bytes: Buffer): void {
    if (!this.#way) {
      this.#early = true;
      return;
    }
    this.#answering = true;
    try {
      this.#parser.push(bytes);
    } catch (error) {
      this.lost(error as Error);
    }
  }

  ended(): void {
    try {
      this.#parser.end();
      this.lost(new Error('the connection was closed'));
    } catch (error) {
      this.lost(error as Error);
    }
  }

  lost(error: Error): void {
    const receiver = this.#receiver;
    this.#receiver = undefined;
    if (!this.#gone) {
      this.#gone = true;
      this.#way?.destroy();
      this.#owner.gone(this);
    }
    receiver?.onError(error);
  }
}
