import type { Duplex } from 'node:stream';
import { StringDecoder } from 'node:string_decoder';

export interface MessagePipeEvents<In> {
  message(message: In): void;
  /** A line that is no message: records, in the form that the ledger's tail has. */
  records?(line: string): void;
  /** The other process is gone. */
  closed(): void;
}

/**
 * Messages between two processes over a pipe that they alone have. Those of one turn of the event loop travel together:
 * the more there is to say, the less each costs.
 */
export class MessagePipe<In extends unknown[], Out extends unknown[]> {
  readonly #socket: Duplex;
  readonly #events: MessagePipeEvents<In>;
  readonly #decoder = new StringDecoder('utf8');
  #unread = '';
  #lines: string[] = [];
  #scheduled = false;
  #is_closed = false;
  /** Adds what was gathered apart, before a turn's messages are sent. */
  beforeSending: () => void = () => undefined;

  constructor(socket: Duplex, events: MessagePipeEvents<In>) {
    this.#socket = socket;
    this.#events = events;
    socket.on('data', (bytes: Buffer) => this.#read(bytes));
    // That the other side is gone is told by the end of the pipe.
    socket.on('error', () => this.#close());
    socket.on('end', () => this.#close());
    socket.on('close', () => this.#close());
  }

  post(message: Out): void {
    this.#lines.push(`${JSON.stringify(message)}\n`);
    this.schedule();
  }

  /** A line of its own, with its end. */
  postRecords(line: string): void {
    this.#lines.push(line);
    this.schedule();
  }

  /** Something is to be sent with this turn. */
  schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => this.#send());
  }

  /** Sends what was posted, and ends this side. */
  end(): Promise<void> {
    this.#send();
    return new Promise((resolve) => {
      if (this.#is_closed) resolve();
      else this.#socket.end(() => resolve());
    });
  }

  #send(): void {
    this.beforeSending();
    this.#scheduled = false;
    if (this.#lines.length === 0 || this.#is_closed) return;
    const text = this.#lines.length === 1 ? this.#lines[0]! : this.#lines.join('');
    this.#lines = [];
    this.#socket.write(text);
  }

  #read(bytes: Buffer): void {
    const lines = (this.#unread + this.#decoder.write(bytes)).split('\n');
    this.#unread = lines.pop()!;
    for (const line of lines) {
      if (line.startsWith('[')) this.#hear(JSON.parse(line));
      else this.#events.records!(line);
    }
  }

  /** Both sides are of one build, and nobody else can write to the pipe. */
  #hear(message: unknown): void {
    this.#events.message(message as In);
  }

  #close(): void {
    if (this.#is_closed) return;
    this.#is_closed = true;
    this.#events.closed();
  }
}
