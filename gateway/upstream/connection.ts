import type { TLSSocket } from 'node:tls';
import { type BodyPieces, bytesOf } from '../relay/body-edits.ts';
import { type AnswerEvents, type AnswerHead, HttpAnswerParser } from './http-answer-parser.ts';

/** Whom the answer to one request goes to. Exactly one of `onEnd` and `onError` is called, and then nothing more. */
export interface AnswerReceiver {
  onHead(head: AnswerHead): void;
  /** False pauses the connection until `resume`. */
  onBody(bytes: Buffer): boolean;
  onEnd(): void;
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

/** One TLS connection to a session, and at most one request on it at a time. */
export class Connection implements AnswerEvents {
  #socket: TLSSocket | undefined;
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
  served = 0;
  /** Whether a byte of the present answer has come. */
  answering = false;
  /** On the monotonic clock. */
  idle_since_ms = 0;

  constructor(owner: ConnectionOwner) {
    this.#owner = owner;
  }

  /** @param socket connected; what arrives on it goes to `read` */
  open(socket: TLSSocket): void {
    this.#socket = socket;
    if (this.#early) queueMicrotask(() => socket.destroy(new Error('it spoke before it was asked')));
    socket.on('error', (error) => this.#lost(error));
    socket.on('end', () => this.#ended());
    socket.on('close', () => this.#lost(new Error('the connection was closed')));
  }

  /** Seconds an idle connection may live as the peer said; undefined where it said nothing. */
  get idle_s(): number | undefined {
    return this.#parser.idle_s;
  }

  /** @param head request line and fields, the empty line included */
  send(head: string, body: BodyPieces, receiver: AnswerReceiver): void {
    this.#receiver = receiver;
    this.served++;
    this.answering = false;
    this.#parser.expect();
    if (bytesOf(body) <= one_write_bytes_max) {
      let text = head;
      for (const piece of body) text += piece.toString('latin1');
      this.#socket!.write(text, 'latin1');
      return;
    }
    this.#socket!.write(head, 'latin1');
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
        if (this.#socket!.write(slice)) continue;
        this.#socket!.once('drain', () => this.#sendSlices(body, index, at));
        return;
      }
      at = 0;
    }
    this.#sending = false;
  }

  resume(): void {
    if (!this.#paused) return;
    this.#paused = false;
    this.#socket!.resume();
  }

  /** Ends the connection; its receiver hears nothing more. */
  destroy(): void {
    this.#receiver = undefined;
    this.#lost(new Error('given up'));
  }

  /** Ends the connection, and tells its receiver why. */
  fail(error: Error): void {
    this.#lost(error);
  }

  onHead(head: AnswerHead): void {
    this.#receiver?.onHead(head);
  }

  onBody(bytes: Buffer): void {
    if (!this.#receiver || this.#receiver.onBody(bytes)) return;
    this.#paused = true;
    this.#socket!.pause();
  }

  onEnd(reusable: boolean): void {
    const receiver = this.#receiver;
    this.#receiver = undefined;
    this.resume();
    // Who answers before it has the whole request may take the rest of it for the next.
    if (reusable && !this.#gone && !this.#sending) this.#owner.idle(this);
    else this.#lost(new Error('the connection cannot be used again'));
    receiver?.onEnd();
  }

  /**
   * @param bytes valid during the call: what receivers keep of them is kept as a copy, small ones out of a common pool
   */
  read(bytes: Buffer): void {
    if (!this.#socket) {
      this.#early = true;
      return;
    }
    this.answering = true;
    try {
      this.#parser.push(Buffer.from(bytes));
    } catch (error) {
      this.#lost(error as Error);
    }
  }

  #ended(): void {
    try {
      this.#parser.end();
      this.#lost(new Error('the connection was closed'));
    } catch (error) {
      this.#lost(error as Error);
    }
  }

  #lost(error: Error): void {
    const receiver = this.#receiver;
    this.#receiver = undefined;
    if (!this.#gone) {
      this.#gone = true;
      this.#socket?.destroy();
      this.#owner.gone(this);
    }
    receiver?.onError(error);
  }
}
