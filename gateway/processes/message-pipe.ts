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
 * How long what nobody waits for may wait for company, ms. Lower: the other side knows it sooner; higher: it costs
 * nothing of its own at lower rates, too.
 */
const company_ms = 5;

/** Said at a time, and put into words when it is sent. */
interface Passenger<Out> {
  at_ms: number;
  make(age_ms: number): Out;
}

/**
 * Messages between two processes over a pipe that they alone have. Those of one turn of the event loop are one line, an
 * array, and one write; what nobody waits for goes with the next of them.
 */
export class MessagePipe<In extends unknown[], Out extends unknown[]> {
  readonly #socket: Duplex;
  readonly #events: MessagePipeEvents<In>;
  readonly #decoder = new StringDecoder('utf8');
  #unread = '';
  /** In the order in which they were said. */
  #unsent: (Out | Passenger<Out>)[] = [];
  /** Lines of records behind these messages. */
  #records = '';
  #scheduled = false;
  #company: NodeJS.Timeout | undefined;
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
    this.#unsent.push(message);
    this.schedule();
  }

  /**
   * What nobody waits for: it goes with the next message, and after a few milliseconds where there is none.
   * @param make what is sent, when it is sent: its age then is part of it
   */
  postInCompany(make: (age_ms: number) => Out): void {
    this.#unsent.push({ at_ms: performance.now(), make });
    if (this.#scheduled) return;
    this.#company ??= setTimeout(() => {
      this.#company = undefined;
      this.#send();
    }, company_ms);
  }

  /** A line of records, with its end, behind all that was posted; for `beforeSending`. */
  postRecords(line: string): void {
    this.#records += line;
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
    if (this.#unsent.length === 0 || this.#is_closed) return;
    const now_ms = performance.now();
    const messages = this.#unsent.map((each) => ('make' in each ? each.make(now_ms - each.at_ms) : each));
    const text = `${JSON.stringify(messages)}\n${this.#records}`;
    this.#unsent = [];
    this.#records = '';
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
  #hear(messages: unknown): void {
    for (const message of messages as In[]) this.#events.message(message);
  }

  #close(): void {
    if (this.#is_closed) return;
    this.#is_closed = true;
    clearTimeout(this.#company);
    this.#events.closed();
  }
}
