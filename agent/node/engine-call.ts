import type { Socket } from 'node:net';
import { type Readable, Transform } from 'node:stream';
import {
  type AnswerEvents,
  type HttpAnswerHead,
  HttpAnswerParser,
  MalformedAnswer,
} from '../../host/http-answer-parser.ts';
import { connectToEngine } from './engine-socket.ts';
import type { Upstream } from './serving-process.ts';

/** Whom the answer goes to. At most one of `onEnd` and `onError` is called, and then nothing more. */
export interface EngineReceiver {
  /** The engine is there: the request is on its way. */
  onConnect(): void;
  onHead(head: HttpAnswerHead): void;
  /** @param bytes valid during the call only */
  onBody(bytes: Buffer): void;
  /** @param trailers names in lower case, each followed by its value */
  onEnd(trailers: readonly string[]): void;
  onError(error: Error): void;
}

export interface EngineRequest {
  method: string;
  path: string;
  /** Names in lower case, each with its value; how long the body is and in what form it comes is added. */
  fields: readonly (readonly [name: string, value: string])[];
  body: EngineBody;
}

/** A body of known length, or one that comes in chunks. */
export type EngineBody =
  | { kind: 'whole'; bytes: Buffer }
  | { kind: 'length'; bytes: number; from: Readable }
  | { kind: 'chunks'; from: Readable }
  | { kind: 'none' };

/** All connections are read into it in turn: nothing of it outlives the event in which it came. */
const arrivals = Buffer.allocUnsafeSlow(64 * 1024);

/**
 * One request to an engine on this host, on a connection of its own: that is cheap here, and no request meets one that
 * is being closed. The engine is asked to keep it open all the same: one that answers and closes before the end of the
 * request was written would break the writing, and its answer would be lost with the connection.
 *
 * It does what Node's client would, with a third of the work for each event of a stream.
 */
export class EngineCall implements AnswerEvents {
  readonly #receiver: EngineReceiver;
  readonly #parser = new HttpAnswerParser(this, { may_end_with_connection: true });
  #socket: Socket | undefined;
  #isPaused = false;
  #isOver = false;

  constructor(upstream: Upstream, request: EngineRequest, receiver: EngineReceiver) {
    this.#receiver = receiver;
    const reading = { buffer: arrivals, callback: (length: number) => this.#read(length) };
    connectToEngine(upstream, { onread: reading }, (error, socket) => {
      // What goes wrong later is told by its end.
      socket.on('error', (later) => this.#fail(later));
      if (error) this.#fail(error);
      else if (this.#isOver) socket.destroy();
      else this.#begin(socket, request);
    });
  }

  /** Nothing more is read until `resume`: whoever takes the answer is behind. */
  pause(): void {
    this.#isPaused = true;
  }

  resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#socket?.resume();
  }

  /** Gives it up; the receiver hears nothing more, and the engine sees that nobody listens. */
  destroy(): void {
    this.#isOver = true;
    this.#socket?.destroy();
  }

  onHead(head: HttpAnswerHead): void {
    if (!this.#isOver) this.#receiver.onHead(head);
  }

  onBody(bytes: Buffer): void {
    if (!this.#isOver) this.#receiver.onBody(bytes);
  }

  onEnd(_reusable: boolean, trailers: readonly string[]): void {
    if (this.#isOver) return;
    this.destroy();
    this.#receiver.onEnd(trailers);
  }

  #begin(socket: Socket, { method, path, fields, body }: EngineRequest): void {
    this.#socket = socket;
    socket.setNoDelay(true);
    socket.on('end', () => this.#ended());
    socket.on('close', () => this.#fail(new Error('the connection was closed')));
    this.#parser.expect(method);
    const lines = [...fields, ...framingOf(method, body)].map(([name, value]) => `${name}: ${value}\r\n`);
    socket.cork();
    socket.write(`${method} ${path} HTTP/1.1\r\n${lines.join('')}connection: keep-alive\r\n\r\n`, 'latin1');
    if (body.kind === 'whole') socket.write(body.bytes);
    else if (body.kind === 'length') body.from.pipe(socket, { end: false });
    else if (body.kind === 'chunks') body.from.pipe(new Chunks()).pipe(socket, { end: false });
    socket.uncork();
    this.#receiver.onConnect();
    // Else its end would not be told.
    socket.resume();
  }

  /** @returns whether to read on */
  #read(length: number): boolean {
    if (this.#isOver) return false;
    try {
      this.#parser.push(arrivals.subarray(0, length));
    } catch (error) {
      this.#malformed(error);
    }
    return !this.#isPaused;
  }

  #ended(): void {
    if (this.#isOver) return;
    try {
      this.#parser.end();
    } catch (error) {
      this.#malformed(error);
    }
  }

  /** What the receiver threw is a defect, and no fault of the engine's. */
  #malformed(error: unknown): void {
    if (!(error instanceof MalformedAnswer)) throw error;
    this.#fail(error);
  }

  #fail(error: Error): void {
    if (this.#isOver) return;
    this.destroy();
    this.#receiver.onError(error);
  }
}

/** What a message says of its body (RFC 9112 §6). */
function framingOf(method: string, body: EngineBody): (readonly [string, string])[] {
  if (body.kind === 'chunks') return [['transfer-encoding', 'chunked']];
  if (body.kind === 'whole') return [['content-length', String(body.bytes.length)]];
  if (body.kind === 'length') return [['content-length', String(body.bytes)]];
  return method === 'POST' || method === 'PUT' || method === 'PATCH' ? [['content-length', '0']] : [];
}

/** A body of unknown length in chunks (RFC 9112 §7.1). */
class Chunks extends Transform {
  override _transform(piece: Buffer, _encoding: BufferEncoding, done: () => void): void {
    // One of no bytes would be the last.
    if (piece.length > 0) {
      this.push(`${piece.length.toString(16)}\r\n`);
      this.push(piece);
      this.push('\r\n');
    }
    done();
  }

  override _flush(done: () => void): void {
    this.push('0\r\n\r\n');
    done();
  }
}
