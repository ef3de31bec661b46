import { type ChildProcess, spawn } from 'node:child_process';
import type { Socket } from 'node:net';
import { type Duplex, PassThrough } from 'node:stream';
import { compiledFile } from '../../host/programs.ts';
import { gatewayNodeOptions } from '../../spec/gateway-node-options.ts';
import type { WorkerState } from '../../spec/gateway-processes.ts';
import type { HeldName } from '../holder/messages.ts';
import { Desk, type DeskServices } from './desk.ts';
import { MessagePipe } from './message-pipe.ts';
import { type FromPrimary, type MetricsJson, type ToPrimary, workerOption, workerPipes } from './messages.ts';
import type { PassedRequests } from './passed-requests.ts';

const gatewayProgram = compiledFile('gateway/main.js');
/** A worker that has not taken a changed key by then is ended: it must not let anybody in with the old one. */
const keys_ms = 5000;
/** One that says nothing of itself by then is left out of the metrics. */
const measure_ms = 1000;

export interface WorkerProcessServices extends DeskServices {
  passed: PassedRequests;
}

/** A connection of a client, of which nothing was read. */
export type GivenConnection = readonly [name: HeldName, socket: Socket];

export interface WorkerProcessEvents {
  ready(): void;
  /**
   * @param how exit code or signal in words, or why it was ended
   * @param left connections that it was not given any more
   */
  ended(how: string, left: readonly GivenConnection[]): void;
}

/** One worker as the primary sees it, from its start to its end. */
export class WorkerProcess {
  readonly number: number;
  readonly began_ms = performance.now();
  readonly #started_at_ms = Date.now();
  readonly #child: ChildProcess;
  readonly #pipe: MessagePipe<ToPrimary, FromPrimary>;
  readonly #desk: Desk;
  readonly #ended: Promise<void>;
  #is_ready = false;
  /** Until it is ready for the first time: till then it has no client. */
  #is_starting = true;
  #has_said_ready = false;
  #has_ended = false;
  /** Why it was ended before its time. */
  #killed_because: string | undefined;
  /** Connections of clients that it has, or is about to have. */
  #connections = 0;
  /** Those that it is given, one after the other. */
  #giving: GivenConnection[] = [];
  /**
   * The one that it is given now, which stays open here until the worker has it: of a connection that is on its way to
   * a process that dies, Node says nothing, and leaves it open. Node may keep it back until it knows of the one before.
   */
  #given: { connection: GivenConnection; is_sent: boolean } | undefined;
  /** How far it was told of changes of keys, and how far it has taken them. */
  #told_keys = 0;
  #took_keys = 0;
  readonly #waiting = new Set<() => void>();
  readonly #measured = new Map<number, (metrics: MetricsJson) => void>();
  #questions = 0;

  constructor(number: number, services: WorkerProcessServices, events: WorkerProcessEvents) {
    this.number = number;
    const child = spawn(
      process.execPath,
      [...gatewayNodeOptions, gatewayProgram, `--${workerOption}`, String(number)],
      { stdio: ['ignore', 'inherit', 'inherit', 'ipc', 'pipe', 'pipe'] },
    );
    this.#child = child;
    const pipeAt = (descriptor: number): Duplex => pipeOf(child, descriptor);
    this.#pipe = new MessagePipe(pipeAt(workerPipes.messages), {
      message: (message) => this.#take(message, events),
      records: (line) => this.#desk.records(line),
      // It is dead, or about to be: nobody is given to it any more.
      closed: () => {
        this.#is_ready = false;
      },
    });
    this.#desk = new Desk(services, (message) => this.tell(message));
    const requests = services.passed.serve(pipeAt(workerPipes.requests));
    this.#ended = new Promise((resolve) => {
      let how = '';
      const ended = (): void => {
        if (this.#has_ended) return;
        this.#has_ended = true;
        this.#is_ready = false;
        requests.destroy(new Error('the worker is gone'));
        this.#desk.close();
        for (const then of this.#waiting) then();
        const kept = this.#leftOfGiven();
        events.ended(this.#killed_because ?? how, [...kept, ...this.#giving]);
        resolve();
      };
      child.once('error', (error) => {
        how ||= error.message;
        // One that was never there has no other end.
        if (child.pid === undefined) ended();
      });
      child.once('exit', (code, signal) => {
        how ||= signal ?? `exit code ${code}`;
      });
      // Behind the end of its pipes: what it has said by then counts.
      child.once('close', ended);
    });
  }

  get pid(): number | undefined {
    return this.#child.pid;
  }

  get isReady(): boolean {
    return this.#is_ready;
  }

  /** Whether it was ready at any time. */
  get hasAnswered(): boolean {
    return !this.#is_starting;
  }

  get connections(): number {
    return this.#connections;
  }

  get state(): WorkerState {
    return {
      number: this.number,
      state: this.#is_ready ? 'answers' : 'starts',
      pid: this.pid,
      started_at_ms: this.#started_at_ms,
      connections: this.#connections,
    };
  }

  tell(message: FromPrimary): void {
    if (message[0] === 'keys') this.#told_keys = message[1];
    if (!this.#has_ended) this.#pipe.post(message);
  }

  give(connection: GivenConnection): void {
    this.#connections++;
    this.#giving.push(connection);
    this.#giveNext();
  }

  /**
   * When it lets nobody in with a key as it was before a version: it has taken changes up to there, or has ended. One
   * that starts lets nobody in before it has taken all of them.
   */
  async tookKeys(version: number): Promise<void> {
    if (this.#is_starting || this.#took_keys >= version || this.#has_ended) return;
    const because = `it has not taken a changed key after ${keys_ms / 1000} s`;
    const limit = setTimeout(() => this.kill(because), keys_ms);
    while (this.#took_keys < version && !this.#has_ended)
      await new Promise<void>((resolve) => this.#waiting.add(resolve));
    clearTimeout(limit);
  }

  /** What it measures of itself; undefined where it does not say. */
  measure(): Promise<MetricsJson | undefined> {
    const question = ++this.#questions;
    return new Promise((resolve) => {
      const done = (metrics?: MetricsJson): void => {
        clearTimeout(limit);
        this.#measured.delete(question);
        resolve(metrics);
      };
      const limit = setTimeout(done, measure_ms);
      this.#measured.set(question, done);
      this.tell(['measure', question]);
    });
  }

  /** Has it take no more requests, and end when those inside are answered, or after `limit_ms`. */
  async drain(limit_ms: number): Promise<void> {
    this.tell(['drain']);
    const limit = setTimeout(() => this.kill(), limit_ms);
    await this.#ended;
    clearTimeout(limit);
  }

  /** @param because where that is to be told */
  kill(because?: string): void {
    this.#killed_because ??= because;
    this.#child.kill('SIGKILL');
  }

  async end(): Promise<void> {
    this.kill();
    await this.#ended;
  }

  #giveNext(): void {
    // Where it dies before it is given the others, another one has them.
    if (this.#given || !this.#child.connected) return;
    const connection = this.#giving.shift();
    if (!connection) return;
    const [name, socket] = connection;
    const given = { connection, is_sent: false };
    this.#given = given;
    this.#child.send({ name }, socket, { keepOpen: true }, (error) => {
      given.is_sent = true;
      if (error) socket.destroy();
    });
  }

  /** What it had not been sent. Of what it was sent it may have read the beginning, so that is ended. */
  #leftOfGiven(): GivenConnection[] {
    if (!this.#given) return [];
    if (!this.#given.is_sent) return [this.#given.connection];
    this.#given.connection[1].destroy();
    return [];
  }

  /** It is ready when it says so and knows all keys as they are: whoever changed one was not made to wait for it. */
  #readyWithKeys(events: WorkerProcessEvents): void {
    if (!this.#is_starting || !this.#has_said_ready || this.#took_keys < this.#told_keys) return;
    this.#is_starting = false;
    this.#is_ready = true;
    events.ready();
  }

  #take(message: ToPrimary, events: WorkerProcessEvents): void {
    if (this.#desk.take(message)) return;
    switch (message[0]) {
      case 'ready':
        this.#has_said_ready = true;
        this.#readyWithKeys(events);
        break;
      case 'connected':
        this.#given?.connection[1].destroy();
        this.#given = undefined;
        this.#giveNext();
        break;
      case 'disconnected':
        this.#connections -= message[1];
        break;
      case 'took_keys':
        this.#took_keys = message[1];
        for (const then of this.#waiting) then();
        this.#waiting.clear();
        this.#readyWithKeys(events);
        break;
      case 'measured':
        this.#measured.get(message[1])?.(message[2]);
        break;
    }
  }
}

/** One that is closed where there was no descriptor left for it: then `error` follows, and Node has made no pipe. */
function pipeOf({ stdio }: { stdio?: ChildProcess['stdio'] }, descriptor: number): Duplex {
  return (stdio?.[descriptor] as Duplex | undefined) ?? new PassThrough().destroy();
}
