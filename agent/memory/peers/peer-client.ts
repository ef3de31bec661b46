import { Agent, type IncomingMessage, request } from 'node:http';
import { setTimeout as delay } from 'node:timers/promises';
import {
  offersSchema,
  type PeerOffer,
  range_bytes_max,
  rangePath,
  type TensorRange,
} from './peer-messages.ts';

/**
 * Ranges on their way at once. Lower: less memory and noise beside the load; higher: links with long ways are filled.
 */
const streams = 4;
/** Of an answer without a byte. Lower: a peer that hangs is given up sooner; higher: busy nodes are given time. */
const silence_ms = 2000;
/** A peer that serves as many as it can is asked again after so long, so often. */
const busy_ms = 200;
const busy_tries = 25;
/**
 * Of the list of offers: peers are asked for it now, the last ones after 3 s, each for 5 s. The file is read meanwhile.
 */
const offers_ms = 9000;
const tooManyRequests = 429;
const offers_bytes_max = 16 * 1024 * 1024;

/** Asks the own node agent for tensors that other nodes have in memory; it reaches them through the mesh. */
export class PeerClient {
  readonly #agent = new Agent({ keepAlive: true, maxSockets: streams });
  readonly #socketPath: string;

  constructor(socketPath: string) {
    this.#socketPath = socketPath;
  }

  /** @throws Error: the agent does not answer */
  async offers(contents: readonly string[]): Promise<PeerOffer[]> {
    const body = JSON.stringify({ contents });
    const answer = await this.#ask('POST', '/offers', offers_ms, body);
    requireOk(answer);
    const chunks: Buffer[] = [];
    let bytes = 0;
    for await (const chunk of answer as AsyncIterable<Buffer>) {
      bytes += chunk.length;
      if (bytes > offers_bytes_max) throw new Error('the list of offers is too large');
      chunks.push(chunk);
    }
    return offersSchema.parse(JSON.parse(Buffer.concat(chunks).toString('utf8'))).peers;
  }

  /**
   * Fetches a tensor whole, in ranges, several at a time.
   * @param received is told of each piece as it comes, and of none while a busy peer is waited for; what it throws ends
   *   it
   * @throws Error: a range did not come whole; nothing more is written to `target` then
   */
  async fetch(
    session_id: string,
    content: string,
    target: Uint8Array,
    received: (bytes: number) => void,
  ): Promise<void> {
    const ranges: TensorRange[] = [];
    for (let offset = 0; offset < target.length; offset += range_bytes_max)
      ranges.push({ content, offset, bytes: Math.min(range_bytes_max, target.length - offset) });
    const fetched = await Promise.allSettled(
      ranges.map((range) => this.#fetchRange(session_id, range, target, received)),
    );
    for (const outcome of fetched) if (outcome.status === 'rejected') throw outcome.reason;
  }

  close(): void {
    this.#agent.destroy();
  }

  async #fetchRange(
    session_id: string,
    range: TensorRange,
    target: Uint8Array,
    received: (bytes: number) => void,
  ): Promise<void> {
    const path = rangePath(`/peers/${session_id}/`, range);
    let answer = await this.#ask('GET', path, silence_ms);
    for (let tries = 1; answer.statusCode === tooManyRequests && tries < busy_tries; tries++) {
      answer.resume();
      await delay(busy_ms);
      received(0);
      answer = await this.#ask('GET', path, silence_ms);
    }
    requireOk(answer);
    let done = 0;
    for await (const chunk of answer as AsyncIterable<Buffer>) {
      if (done + chunk.length > range.bytes) throw new Error('more bytes came than were asked for');
      target.set(chunk, range.offset + done);
      done += chunk.length;
      received(chunk.length);
    }
    if (done < range.bytes) throw new Error(`${done} of ${range.bytes} bytes came`);
  }

  #ask(method: string, path: string, patience_ms: number, body?: string): Promise<IncomingMessage> {
    return new Promise((resolve, reject) => {
      const asked = request({
        agent: this.#agent,
        socketPath: this.#socketPath,
        method,
        path,
        headers: { host: 'agent', ...(body !== undefined && { 'content-type': 'application/json' }) },
      });
      asked.setTimeout(patience_ms, () => asked.destroy(new Error(`silent for ${patience_ms / 1000} s`)));
      asked.once('error', reject);
      asked.once('response', resolve);
      asked.end(body);
    });
  }
}

function requireOk(answer: IncomingMessage): void {
  if (answer.statusCode === 200) return;
  answer.destroy();
  throw new Error(`the answer was ${answer.statusCode}`);
}
