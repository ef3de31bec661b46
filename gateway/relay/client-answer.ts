import type { Socket } from 'node:net';
import type { HpcserveError } from '../../spec/errors/error.ts';
import { headers } from '../../spec/wire.ts';
import { errorEvent, sendError } from '../http-error.ts';
import type { AcceptedRequest } from './accepted-request.ts';
import type { ClientResponse } from './client-response.ts';

/** The head of a replica's answer, as far as it goes on to the client. */
export interface PassedHead {
  status: number;
  /** Names, each followed by its value. */
  pairs: readonly string[];
  /** Of the replica, added by the gateway: who answered. */
  answeredBy: readonly string[];
}

/**
 * What the client of one request gets, whoever feeds it: the head once, errors in the way that what was sent so far
 * leaves open, and a pause while it takes nothing.
 */
export class ClientAnswer {
  readonly response: ClientResponse;
  readonly #of: AcceptedRequest;
  readonly #onFirstByte: () => void;
  readonly #stall_ms: number;
  #ttft_ms: number | undefined;
  #stall: NodeJS.Timeout | undefined;
  /** What goes on when the client has taken what was written; while there is some, its `drain` is listened to. */
  readonly #held = new Set<() => void>();

  /**
   * @param stall_ms a client that takes no bytes for so long is cut off
   * @param onFirstByte runs once, before the first bytes of an answer go to the client
   */
  constructor(of: AcceptedRequest, stall_ms: number, onFirstByte: () => void) {
    this.response = of.response;
    this.#of = of;
    this.#stall_ms = stall_ms;
    this.#onFirstByte = onFirstByte;
  }

  /** Whether something of an answer has been sent: then nobody else can begin it anew. */
  get begun(): boolean {
    return this.response.headersSent;
  }

  /** From the beginning of the request to the first byte of its answer. */
  get ttft_ms(): number | undefined {
    return this.#ttft_ms;
  }

  /** The first bytes of an answer are about to go to the client. */
  firstByte(): void {
    if (this.#ttft_ms !== undefined) return;
    this.#ttft_ms = performance.now() - this.#of.began_ms;
    this.#onFirstByte();
  }

  /** @param contentLength absent where it is not known yet */
  writeHead({ status, pairs, answeredBy }: PassedHead, contentLength?: number): void {
    this.firstByte();
    const all = [...pairs, headers.request_id, this.#of.request_id, ...answeredBy];
    if (contentLength !== undefined) all.push('content-length', String(contentLength));
    this.response.writeHead(status, all);
  }

  /**
   * Calls back when the client has taken what was written; one that takes nothing for too long is cut off.
   * @param resume called once, however often it is given meanwhile: each event of a record may be told to wait
   */
  whenTaken(resume: () => void): void {
    const isFollowed = this.#held.size > 0;
    this.#held.add(resume);
    if (isFollowed) return;
    this.endStall();
    this.#watch(() => {
      // Of one behind another on its connection, the time begins when its turn has come.
      if (this.response.socket === null) return;
      this.endStall();
      this.response.destroy();
    });
    this.response.once('drain', () => {
      this.endStall();
      const held = [...this.#held];
      this.#held.clear();
      for (const goOn of held) goOn();
    });
  }

  endStall(): void {
    clearTimeout(this.#stall);
  }

  /** Its end is written: a client that does not take it loses its connection, which would hold it for good. */
  watchRest(): void {
    const { socket } = this.#of.request;
    if (this.response.destroyed || this.response.writableLength === 0) return;
    this.#watch(() => {
      // Where nothing waits, the answer is behind another one on its connection.
      if (socket.writableLength > 0) socket.destroy();
    });
    this.response.once('close', () => this.endStall());
  }

  /** @param cutOff for a client that took nothing from one look to the next */
  #watch(cutOff: () => void): void {
    const { socket } = this.#of.request;
    let before = takenOf(socket);
    this.#stall = setInterval(() => {
      const now = takenOf(socket);
      if (now.written_bytes === before.written_bytes && now.queued_bytes === before.queued_bytes) cutOff();
      before = now;
      if (socket.destroyed) this.endStall();
    }, this.#stall_ms).unref();
  }

  /**
   * Ends with an error of the gateway's own.
   * @param extra header pairs, where the head is still to be sent
   */
  endWith(error: HpcserveError, extra: readonly string[]): void {
    if (!this.begun) sendError(this.response, error, this.#of.request_id, extra);
    else if (this.#of.parsed.stream) this.response.end(errorEvent(error));
    else this.response.destroy();
  }
}

interface Taken {
  /** Of writes of which it has all. */
  written_bytes: number;
  /** What the kernel has not taken yet of the write that is under way, which may be of a megabyte and more. */
  queued_bytes: number;
}

/** As Node has it, beside what it documents. */
interface Handle {
  writeQueueSize: number;
  /** Of TLS: that of the connection below it. */
  _parent?: Handle;
}

/** How far a client has come with all that was written on its connection. */
function takenOf(socket: Socket): Taken {
  const { bytesWritten, writableLength } = socket;
  // Node counts a write when all of it is done; how much is left of one, it asks its handle, as its own timeouts do.
  const { _handle: handle } = socket as Socket & { _handle?: Handle | null };
  // TLS hands on a write as a whole and counts it until all of it is done, too.
  const { writeQueueSize = 0 } = handle?._parent ?? handle ?? {};
  return { written_bytes: bytesWritten - writableLength, queued_bytes: writeQueueSize };
}
