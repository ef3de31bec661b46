import type { HttpAnswerHead } from '../../host/http-answer-parser.ts';
import type { BodyPieces } from '../relay/body-edits.ts';
import { type AnswerReceiver, Connection } from './connection.ts';
import type { SessionWay, WayEvents } from './session-way.ts';

/**
 * How long an idle connection is kept where the peer does not say: Node's servers close theirs after 5 s. A
 * request on a connection that is just being closed is sent again on a new one, so this only saves attempts.
 */
const idleDefault_ms = 4000;
/** A connection is given up so long before the peer would close it. */
const idleMargin_ms = 1000;
/** Least time between two looks for connections to give up. Lower: each goes in time; higher: fewer looks. */
const sweep_ms = 500;
/**
 * Handshakes with one session at a time; what else is to be sent waits for a connection. A node ends the oldest of more
 * than 256 connections of which nobody has shown who he is, and several gateways and sessions share that number. Lower:
 * a burst takes longer to begin; higher: handshakes of a burst end each other.
 */
const handshakes_max = 32;

/** A session that ends each connection at once is no better for being asked more often. */
const resends_max = 3;

/** A request failed of which the session had nothing, as far as anybody knows. */
export class Unsent extends Error {
  override readonly name = 'Unsent';

  constructor(cause: Error) {
    super(cause.message, { cause });
  }
}

/** One request on its way. */
export class Call implements AnswerReceiver {
  readonly #pool: CallPool;
  readonly head: string;
  readonly body: BodyPieces;
  readonly #receiver: AnswerReceiver;
  #connection: Connection | undefined;
  #resends = 0;
  /** By what it was lost after it had been written to a session that was heard, until it is written anew. */
  #lost: Error | undefined;
  #over = false;

  constructor(pool: CallPool, head: string, body: BodyPieces, receiver: AnswerReceiver) {
    this.#pool = pool;
    this.head = head;
    this.body = body;
    this.#receiver = receiver;
  }

  on(connection: Connection): void {
    this.#connection = connection;
    // The session is there: only its connection was gone.
    this.#lost = undefined;
    connection.send(this.head, this.body, this);
  }

  /**
   * Gives the request up; the receiver hears nothing more. The session sees its connection closed, and stops computing.
   */
  abort(): void {
    if (this.#over) return;
    this.#over = true;
    if (this.#connection) this.#connection.destroy();
    else this.#pool.forget(this);
  }

  resume(): void {
    this.#connection?.resume();
  }

  onHead(head: HttpAnswerHead): void {
    this.#receiver.onHead(head);
  }

  onBody(bytes: Buffer): boolean {
    return this.#receiver.onBody(bytes);
  }

  onEnd(trailers: readonly string[]): void {
    if (this.#over) return;
    this.#over = true;
    this.#receiver.onEnd(trailers);
  }

  onError(error: Error): void {
    if (this.#over) return;
    const connection = this.#connection;
    this.#connection = undefined;
    let failure = error;
    // Kept connections may be closed by the peer at the moment they are used: nothing was computed then.
    if (connection?.wasStale === true && this.#resends++ < resends_max) {
      if (!connection.waitsSince(this.#pool.unheard_since_ms)) this.#lost = error;
      if (this.#pool.again(this)) return;
      failure = new Unsent(error);
    }
    this.#over = true;
    // Who was heard before the request and cannot be reached after it has ended: hardly in the moment between the two.
    this.#receiver.onError(failure instanceof Unsent && this.#lost ? this.#lost : failure);
  }
}

/** Where connections come from. */
export interface Ways {
  /** Makes one whose peer is verified. */
  open(events: WayEvents): Promise<SessionWay>;
  /** What is left of them ends. */
  close(error: Error): void;
}

interface CallPool {
  /** Since when the session is not heard though it should be, on the monotonic clock; in the future where it is. */
  readonly unheard_since_ms: number;
  /** Sends a call on a new connection; false where the pool is closed. */
  again(call: Call): boolean;
  /** A call was given up before there was a connection for it. */
  forget(call: Call): void;
}

/** The connections to one session that carry requests: as many as there are requests at a time. */
export class UpstreamPool implements CallPool {
  readonly #ways: Ways;
  readonly #unheardSince_ms: () => number;
  readonly #idle: Connection[] = [];
  readonly #all = new Set<Connection>();
  /** Calls that no connection is there for yet, in their order, by which they are numbered. */
  readonly #queued = new Map<Call, number>();
  #last_queued = 0;
  #handshakes = 0;
  /** Connections that were made since the pool is there. */
  #made = 0;
  /** While there is something to sweep. */
  #sweeper: NodeJS.Timeout | undefined;
  #sweeps_at_ms = 0;
  #closed: Error | undefined;

  /** @param unheardSince_ms see `unheard_since_ms`; absent: nobody listens whether the session lives */
  constructor(ways: Ways, unheardSince_ms = () => Number.POSITIVE_INFINITY) {
    this.#ways = ways;
    this.#unheardSince_ms = unheardSince_ms;
  }

  get unheard_since_ms(): number {
    return this.#unheardSince_ms();
  }

  /** Requests on their way. */
  get busy(): number {
    return this.#all.size - this.#idle.length + this.#queued.size;
  }

  /** @param head request line and fields, the empty line included */
  send(head: string, body: BodyPieces, receiver: AnswerReceiver): Call {
    const call = new Call(this, head, body, receiver);
    const connection = this.#queued.size === 0 ? this.#idle.pop() : undefined;
    if (connection) call.on(connection);
    else if (!this.again(call)) queueMicrotask(() => call.onError(new Unsent(this.#closed!)));
    return call;
  }

  again(call: Call): boolean {
    if (this.#closed) return false;
    this.#queued.set(call, ++this.#last_queued);
    if (this.#handshakes < handshakes_max) this.#open();
    return true;
  }

  forget(call: Call): void {
    this.#queued.delete(call);
  }

  /** Makes a connection for whichever call is first by then. */
  #open(): void {
    this.#handshakes++;
    const made = this.#made;
    const last = this.#last_queued;
    const connection = new Connection(this);
    this.#ways.open(connection).then(
      (way) => {
        this.#handshakes--;
        this.#made++;
        if (this.#closed) {
          way.destroy();
          return;
        }
        this.#all.add(connection);
        connection.open(way);
        const call = this.#firstQueued();
        if (call) call.on(connection);
        else this.idle(connection);
        this.#openMore();
      },
      (error: Error) => {
        this.#handshakes--;
        // Where none succeeded meanwhile, whoever waits since it began would have fared no better.
        if (this.#made === made) this.#failQueued(new Unsent(error), last);
        this.#openMore();
      },
    );
  }

  #openMore(): void {
    while (!this.#closed && this.#handshakes < Math.min(handshakes_max, this.#queued.size)) this.#open();
  }

  /** Takes it out. */
  #firstQueued(): Call | undefined {
    const [call] = this.#queued.keys();
    if (call) this.#queued.delete(call);
    return call;
  }

  /** @param last number of the last call that it is about */
  #failQueued(error: Error, last: number): void {
    for (const [call, number] of [...this.#queued]) {
      if (number > last) return;
      this.#queued.delete(call);
      call.onError(error);
    }
  }

  idle(connection: Connection): void {
    connection.idle_since_ms = performance.now();
    this.#idle.push(connection);
    this.#sweepIn(limitOf(connection));
    // Its last answer is still being passed on: the next request follows behind that.
    if (this.#queued.size > 0) queueMicrotask(() => this.#reuse());
  }

  #reuse(): void {
    while (this.#idle.length > 0 && this.#queued.size > 0) {
      const call = this.#firstQueued();
      const connection = this.#idle.pop()!;
      if (call) call.on(connection);
      else this.#idle.push(connection);
    }
  }

  gone(connection: Connection): void {
    this.#all.delete(connection);
    const index = this.#idle.lastIndexOf(connection);
    if (index !== -1) this.#idle.splice(index, 1);
  }

  /**
   * Ends every connection; requests on their way fail with `error`, those that the session had nothing of as `Unsent`.
   *
   * @param unheard_since_ms the session was not heard when it should have been: what was sent later is not why
   */
  destroy(error: Error, unheard_since_ms = Number.POSITIVE_INFINITY): void {
    if (this.#closed) return;
    this.#closed = error;
    clearTimeout(this.#sweeper);
    const unsent = new Unsent(error);
    this.#failQueued(unsent, this.#last_queued);
    for (const connection of [...this.#all])
      connection.fail(connection.waitsSince(unheard_since_ms) ? unsent : error);
    this.#ways.close(error);
  }

  #sweep(): void {
    this.#sweeper = undefined;
    const now_ms = performance.now();
    let next_ms = Number.POSITIVE_INFINITY;
    for (const connection of [...this.#idle]) {
      const left_ms = connection.idle_since_ms + limitOf(connection) - now_ms;
      if (left_ms <= 0) connection.destroy();
      else next_ms = Math.min(next_ms, left_ms);
    }
    if (this.#idle.length > 0) this.#sweepIn(next_ms);
  }

  /** Where a look is due before, that one sees to it. */
  #sweepIn(left_ms: number): void {
    const wait_ms = Math.max(left_ms, sweep_ms);
    const due_ms = performance.now() + wait_ms;
    if (this.#sweeper && this.#sweeps_at_ms <= due_ms) return;
    clearTimeout(this.#sweeper);
    this.#sweeps_at_ms = due_ms;
    this.#sweeper = setTimeout(() => this.#sweep(), wait_ms).unref();
  }
}

/** How long a connection may be idle. */
function limitOf({ idle_s }: Connection): number {
  return idle_s === undefined ? idleDefault_ms : Math.max(0, idle_s * 1000 - idleMargin_ms);
}
