import type { Duplex } from 'node:stream';
import { StringDecoder } from 'node:string_decoder';
import type { z } from 'zod';

/** Of one message. Higher: more memory for one who sends no end. */
const line_bytes_max = 2 ** 18;

/** Messages on a connection between two agents, a line of JSON each. What cannot be read ends it. */
export class JsonLines<In, Out> {
  readonly #stream: Duplex;
  #rest = '';

  constructor(stream: Duplex, schema: z.ZodType<In>, onMessage: (message: In) => void, onEnd: () => void) {
    this.#stream = stream;
    // A socket that was HTTP's may not be given an encoding.
    const decoder = new StringDecoder('utf8');
    stream.on('data', (bytes: Buffer) => this.#read(decoder.write(bytes), schema, onMessage));
    stream.on('error', () => stream.destroy()); // 'close' follows
    stream.on('end', () => stream.destroy());
    stream.once('close', onEnd);
  }

  send(message: Out): void {
    if (!this.#stream.destroyed) this.#stream.write(`${JSON.stringify(message)}\n`);
  }

  close(): void {
    this.#stream.destroy();
  }

  #read(text: string, schema: z.ZodType<In>, onMessage: (message: In) => void): void {
    const lines = (this.#rest + text).split('\n');
    this.#rest = lines.pop()!;
    if (this.#rest.length > line_bytes_max) this.#stream.destroy();
    for (const line of lines) {
      if (this.#stream.destroyed) return;
      let json: unknown;
      try {
        json = JSON.parse(line);
      } catch {
        json = undefined;
      }
      const parsed = schema.safeParse(json);
      if (parsed.success) onMessage(parsed.data);
      else this.#stream.destroy();
    }
  }
}
