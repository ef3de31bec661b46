/**
 * What the processes of one gateway say to each other, all of a turn in a line of JSON. The gateway itself (the
 * primary) counts, keeps and decides for all; its workers relay requests. See docs/gateway.md, "Several processes".
 */
import type { SecureContextOptions } from 'node:tls';
import type { MetricObjectWithValues, MetricValue } from 'prom-client';
import type { KeyChange } from '../../ledger/index.ts';
import type { RefusedRequest } from '../../spec/device-view.ts';
import type { ErrorJson } from '../../spec/errors/error.ts';
import type { SessionRecord } from '../../spec/session-record.ts';
import type { GatewayConfig } from '../../spec/state-layout.ts';
import type { GatewayTimes } from '../gateway-times.ts';
import type { RatesLeft } from '../keys/rate-fields.ts';
import type { ServiceTime } from '../routing/service-times.ts';
import type { ModelMeasures } from './told-measures.ts';

/** Option of the gateway's program with which it is a worker: its number, from 1. */
export const workerOption = 'worker';

/** Descriptors of a worker beside its output and Node's channel, over which connections of clients come. */
export const workerPipes = { messages: 4, requests: 5 } as const;

/** In the answer to a request that a worker passed on: it was asked with a key, or by the operator. */
export const provenHeader = 'x-hpcserve-proven';

/** A session that changed, or `null` where it is forgotten. */
export type SessionChange = [session_id: string, record: SessionRecord | null];

/** With which it shows itself to sessions: a secret of this gateway's processes. */
export interface IdentityPem {
  private_key_pem: string;
  certificate_pem: string;
}

export interface WorkerStart {
  config: GatewayConfig;
  times: GatewayTimes;
  /** How many of them there are: each has its part of what a gateway may hold. */
  workers: number;
  waiting_max: number;
  identity: IdentityPem;
  admin_token: string;
  sessions: SessionChange[];
  keys: KeyChange[];
  tls: SecureContextOptions | undefined;
  ledger_failure: ErrorJson | null;
  measures: ModelMeasures[];
}

/** A request whose outcome is decided; its record is in the line behind. Numbers are the worker's own, 0 for none. */
export type Closing = [
  reservation: number,
  charge: number,
  computes: 0 | 1,
  demanded: string | null,
  service: ServiceTime | null,
];

export type MetricsJson = MetricObjectWithValues<MetricValue<string>>[];

export type ToPrimary =
  | ['ready']
  /** It has the connection that it was given last. */
  | ['connected']
  /** Of so many clients the connection has ended. */
  | ['disconnected', count: number]
  /** With tokens, they are reserved as well, or it is not let in. */
  | ['admit', reservation: number, key_id: string, tokens?: number]
  | ['reserve', reservation: number, tokens: number]
  | ['release', reservation: number]
  /** Its devices work for a request, and those of the session before do not any more; without an id, nobody's do. */
  | ['charge', charge: number, session_id: string, age_ms: number]
  | ['closed', Closing[]]
  | ['began', model: string, age_ms: number]
  | ['arrived' | 'turned_away' | 'retried' | 'continued', model: string]
  | ['refused', code: string]
  | ['room', question: number, model: string, refused: RefusedRequest, asked: readonly string[]]
  | ['look', question: number]
  | ['took_keys', version: number]
  | ['measured', question: number, metrics: MetricsJson];

export type FromPrimary =
  | ['start', WorkerStart]
  | ['identity', IdentityPem]
  | ['sessions', SessionChange[]]
  | ['keys', version: number, changes: KeyChange[]]
  | ['tls', SecureContextOptions]
  | ['ledger', failure: ErrorJson | null]
  /** Whether something is held for it, since its key has limits now; what is left of them; why it is not taken in. */
  | ['decided', reservation: number, held: 0 | 1, left: RatesLeft | null, refusal?: ErrorJson]
  /** The next so many records are safe; or the next one is not. */
  | ['committed', count: number]
  | ['uncommitted', ErrorJson]
  | ['roomed', question: number, session_id: string | null]
  | ['looked', question: number]
  | ['measures', ModelMeasures[]]
  | ['measure', question: number]
  | ['drain'];
