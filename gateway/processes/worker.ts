import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { ChannelConnection, RelayFallback, SessionIdentity } from '../../mesh/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { headers, limits } from '../../spec/wire.ts';
import { Availability } from '../availability.ts';
import { bearerOf } from '../bearer.ts';
import { isAdmin } from '../caller.ts';
import { ClientConnections } from '../client-connections.ts';
import { CrossOrigin } from '../cross-origin.ts';
import {
  bodyMax_bytes,
  bodyMemory,
  openPrompts,
  openRouter,
  openTracer,
  openTracing,
  openWaiting,
} from '../handler-parts.ts';
import type { HeldName } from '../holder/messages.ts';
import { KeptForKeys } from '../kept/kept-for-keys.ts';
import { KnownProviders } from '../keys/known-providers.ts';
import type { GatewayLog } from '../log.ts';
import { OpenAiHandler, type OpenAiHandlerServices } from '../openai-handler.ts';
import { ProcessMetrics } from '../process-metrics.ts';
import { JournalMemory } from '../relay/journal/journal-memory.ts';
import { Sessions } from '../sessions.ts';
import type { Defragmenter } from '../sharing/defragmenter.ts';
import type { Tracing } from '../telemetry/tracing.ts';
import type { MessagePipe } from './message-pipe.ts';
import type { FromPrimary, ToPrimary, WorkerStart } from './messages.ts';
import { PassOn } from './pass-on.ts';
import { RemoteAccounts } from './remote-accounts.ts';
import { RemoteKeys } from './remote-keys.ts';
import { RemoteLimits } from './remote-limits.ts';
import { SessionMirror } from './session-mirror.ts';
import { ToldMeasures } from './told-measures.ts';
import { WorkerPort } from './worker-port.ts';

export interface WorkerParts {
  pipe: MessagePipe<FromPrimary, ToPrimary>;
  /** For requests that only the primary answers. */
  requests: Duplex;
  log: GatewayLog;
}

/** What the primary counts, and what it said that it has measured. */
function countedElsewhere(
  pipe: WorkerParts['pipe'],
  measures: ToldMeasures,
): Pick<OpenAiHandlerServices, 'metrics' | 'workload' | 'demand'> {
  return {
    metrics: {
      retried: (model) => pipe.postInCompany(() => ['retried', model]),
      continued: (model) => pipe.postInCompany(() => ['continued', model]),
      refused: (code) => pipe.postInCompany(() => ['refused', code]),
    },
    workload: {
      arrived: (model) => pipe.postInCompany(() => ['arrived', model]),
      refused: (model) => pipe.postInCompany(() => ['turned_away', model]),
      longAnswer: (model) => measures.longAnswer(model),
    },
    demand: { began: (model) => pipe.postInCompany((age_ms) => ['began', model, age_ms]) },
  };
}

/**
 * Relays requests of clients, as a gateway of one process does; what counts for all of them, it asks the primary.
 *
 * ```
 *   a connection ─► WorkerPort ─► a path of replicas, with a key ─► OpenAiHandler ─► session
 *    (accepted by                 all else ─► PassOn ─► primary          │
 *     the primary)                                                       └─ limits, accounts ─► primary
 * ```
 */
export class Worker {
  readonly #start: WorkerStart;
  readonly #pipe: MessagePipe<FromPrimary, ToPrimary>;
  readonly #mirror = new SessionMirror();
  readonly #measures = new ToldMeasures();
  readonly #keys: RemoteKeys;
  readonly #limits: RemoteLimits;
  readonly #accounts: RemoteAccounts;
  readonly #sessions: Sessions;
  readonly #metrics = new ProcessMetrics();
  readonly #handler: OpenAiHandler;
  readonly #tracing: Tracing | undefined;
  readonly #passOn: PassOn;
  readonly #connections: ClientConnections;
  readonly #port: WorkerPort;
  #identity: SessionIdentity;
  /** What the primary is to answer, by the number of the question. */
  readonly #asked = new Map<number, (answer: string | null) => void>();
  #questions = 0;
  #failure: HpcserveError | undefined;

  constructor(start: WorkerStart, { pipe, requests, log }: WorkerParts) {
    this.#start = start;
    this.#pipe = pipe;
    const { config, workers, identity, ledger_failure } = start;
    this.#identity = SessionIdentity.of(identity.private_key_pem, identity.certificate_pem);
    this.#failure = ledger_failure ? HpcserveError.fromJSON(ledger_failure) : undefined;
    const post = (message: ToPrimary): void => pipe.post(message);
    const connection = new ChannelConnection(requests);
    requests.on('data', (bytes: Buffer) => connection.read(bytes));
    this.#passOn = new PassOn(connection);
    this.#keys = new RemoteKeys(async () => {
      await this.#ask((question) => ['look', question]);
    });
    this.#keys.apply(start.keys);
    this.#limits = new RemoteLimits(post);
    const relayFallback = new RelayFallback((record) => this.#passOn.tunnel(record));
    this.#sessions = new Sessions(this.#mirror, () => this.#identity, log, relayFallback);
    this.#measures.take(start.measures);
    this.#accounts = new RemoteAccounts(pipe, log);
    const { table } = this.#sessions;
    const availability = new Availability(config.deployments_folder, table, log);
    const prompts = openPrompts(this.#sessions, workers);
    const router = openRouter(config, {
      table,
      serviceTimes: this.#measures.serviceTimes,
      workload: this.#measures,
      availability,
      prompts,
    });
    const { session_id: id } = this.#identity;
    this.#tracing = openTracing(config, { id, interval_ms: start.times.export_ms, log });
    this.#handler = new OpenAiHandler({
      router,
      prompts,
      keys: this.#keys,
      limits: this.#limits,
      accounts: this.#accounts,
      ledger: this,
      ...countedElsewhere(pipe, this.#measures),
      defragmenter: { makeRoom: (...asked) => this.#makeRoom(...asked) },
      log,
      tracing: this.#tracing,
      tracer: openTracer(config),
      providers: new KnownProviders(this.#mirror),
      kept: new KeptForKeys(config, log),
      bodies: bodyMemory(config, workers),
      body_bytes_max: bodyMax_bytes(config),
      journals: new JournalMemory(Math.floor(new JournalMemory().left / workers)),
      waiting: openWaiting(config, start.times, Math.ceil(start.waiting_max / workers)),
    });
    this.#mirror.apply(start.sessions);
    this.#connections = new ClientConnections(Math.ceil(limits.connections / workers), (request) => {
      const secret = bearerOf(request);
      return (
        secret !== undefined && (this.#keys.find(secret) !== undefined || isAdmin(request, start.admin_token))
      );
    });
    this.#port = new WorkerPort(() => this.gone(), start.times, this.#connections, start.tls);
    const crossOrigin = new CrossOrigin(config.origins ?? []);
    this.#port.answerWith((request, response) => this.#answer(request, response, crossOrigin));
    post(['ready']);
  }

  /** Why nothing can be recorded, where it cannot. */
  get failure(): HpcserveError | undefined {
    return this.#failure;
  }

  /** A connection of a client, of which nothing was read. */
  connected(name: HeldName, socket: Socket): void {
    this.#port.take(name, socket);
  }

  /** A connection has ended. */
  gone(): void {
    this.#pipe.post(['disconnected', 1]);
  }

  /** What the primary says, but when to begin and to end. */
  take(message: FromPrimary): void {
    switch (message[0]) {
      case 'decided':
        this.#limits.decided(message);
        break;
      case 'committed':
        this.#accounts.committed(message[1]);
        break;
      case 'uncommitted':
        this.#accounts.committed(1, HpcserveError.fromJSON(message[1]));
        break;
      case 'sessions':
        this.#mirror.apply(message[1]);
        break;
      case 'keys':
        this.#keys.apply(message[2]);
        this.#pipe.post(['took_keys', message[1]]);
        break;
      case 'identity':
        this.#identity = SessionIdentity.of(message[1].private_key_pem, message[1].certificate_pem);
        this.#sessions.relink();
        break;
      case 'tls':
        this.#port.setSecureContext(message[1]);
        break;
      case 'ledger':
        this.#failure = message[1] ? HpcserveError.fromJSON(message[1]) : undefined;
        break;
      case 'measures':
        this.#measures.take(message[1]);
        break;
      case 'looked':
        this.#answered(message[1], null);
        break;
      case 'roomed':
        this.#answered(message[1], message[2]);
        break;
      case 'measure':
        void this.#measure(message[1]);
        break;
    }
  }

  /** Lets answers end, for at most as long as they may take; nothing new is taken in. */
  async drain(): Promise<void> {
    this.#handler.drain();
    await this.#port.drain(this.#start.times.drain_ms);
    await this.#tracing?.close();
    await this.#sessions.close();
  }

  #answer(request: IncomingMessage, response: ServerResponse, crossOrigin: CrossOrigin): void {
    // Who has signed in to the page has his session at the primary.
    const isRelayed = request.headers[headers.page] === undefined && this.#handler.serves(request);
    if (!isRelayed) {
      this.#passOn.pass(request, response, () => this.#connections.proven(request, response));
      return;
    }
    if (!crossOrigin.take(request, response)) this.#handler.take(request, response);
  }

  #makeRoom(...[model, refused, asked]: Parameters<Defragmenter['makeRoom']>): Promise<string | undefined> {
    return this.#ask((question) => ['room', question, model, refused, asked]).then(
      (freed) => freed ?? undefined,
    );
  }

  #ask(message: (question: number) => ToPrimary): Promise<string | null> {
    const question = ++this.#questions;
    return new Promise((resolve) => {
      this.#asked.set(question, resolve);
      this.#pipe.post(message(question));
    });
  }

  #answered(question: number, answer: string | null): void {
    this.#asked.get(question)?.(answer);
    this.#asked.delete(question);
  }

  async #measure(question: number): Promise<void> {
    this.#pipe.post(['measured', question, await this.#metrics.json()]);
  }
}
