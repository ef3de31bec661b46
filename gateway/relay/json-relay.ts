import type { ClientResponse } from './client-response.ts';
import { findFinishReason, findUsage, findUsageAtHead, type TokenUsage } from './usage.ts';

/** An answer up to this size is held until the ledger has it; of a larger one, only the end is. */
const held_bytes_max = 1024 * 1024;
/** Where usage is looked for in a larger answer: at its head and its tail. */
const window_bytes = 64 * 1024;

/** One answer that is no stream, on its way to the client. Bytes pass unchanged. */
export class JsonRelay {
  readonly #response: ClientResponse;
  /** Writes the head of the answer; the length is absent where it is not known yet. */
  readonly #writeHead: (contentLength: number | undefined) => void;
  #held: Buffer[] = [];
  #heldLength = 0;
  /** Of all of the answer so far. */
  bytes = 0;
  #head: Buffer | undefined;
  #passing = false;

  constructor(response: ClientResponse, writeHead: (contentLength: number | undefined) => void) {
    this.#response = response;
    this.#writeHead = writeHead;
  }

  /** Whether bytes have gone to the client already: then only breaking the connection tells of an error. */
  get passing(): boolean {
    return this.#passing;
  }

  /** Whether anything of the answer has come. */
  get begun(): boolean {
    return this.#heldLength > 0;
  }

  /** Takes bytes of the replica; false asks it to pause until the client's `drain`. */
  push(chunk: Buffer): boolean {
    this.#held.push(chunk);
    this.bytes += chunk.length;
    this.#heldLength += chunk.length;
    if (this.#heldLength <= held_bytes_max) return true;
    const all = Buffer.concat(this.#held, this.#heldLength);
    if (!this.#passing) {
      this.#passing = true;
      this.#head = Buffer.from(all.subarray(0, window_bytes));
      this.#writeHead(undefined);
    }
    const rest = all.subarray(all.length - window_bytes);
    this.#held = [rest];
    this.#heldLength = rest.length;
    return this.#response.write(all.subarray(0, all.length - window_bytes));
  }

  /** The whole answer, or what is held of it. */
  body(): Buffer {
    if (this.#held.length === 1) return this.#held[0]!;
    const all = Buffer.concat(this.#held, this.#heldLength);
    this.#held = [all];
    return all;
  }

  get usage(): TokenUsage | undefined {
    return findUsage(this.body()) ?? (this.#head && findUsageAtHead(this.#head));
  }

  get finishReason(): string | undefined {
    return findFinishReason(this.body()) ?? (this.#head && findFinishReason(this.#head));
  }

  /** All of it is there: whether it can be told as the client wants it is known behind this, and before it is sent. */
  prepare(): void {
    this.#response.prepare?.(this.body());
  }

  /** Sends what is held; the request is in the ledger by now. */
  finish(): void {
    const body = this.body();
    if (this.#passing) {
      this.#response.end(body);
      return;
    }
    this.#writeHead(body.length);
    // Head and a short body travel in one write where both are strings; latin1 maps bytes one to one.
    if (body.length <= 16 * 1024) this.#response.end(body.toString('latin1'), 'latin1');
    else this.#response.end(body);
  }
}
