import type { IncomingMessage } from 'node:http';
import type { ApiKey } from '../../ledger/index.ts';
import type { RouteFilter } from '../../solver/routing/filter.ts';
import type { Reservation } from '../keys/key-limits.ts';
import type { ClientResponse } from './client-response.ts';
import type { Endpoint } from './endpoints.ts';
import type { ParsedRequest } from './request-body.ts';
import type { TokenUsage } from './usage.ts';

/** A client's request that was let in, read and checked. */
export interface AcceptedRequest {
  request: IncomingMessage;
  response: ClientResponse;
  request_id: string;
  key: ApiKey;
  endpoint: Endpoint;
  parsed: ParsedRequest;
  /** Who may answer; absent: everybody. */
  filter: RouteFilter | undefined;
  /** What the limits of its key hold for it; absent where it has none. */
  reservation: Reservation | undefined;
  /** Tokens that its prompt may have, by its bytes and the model's context: what counts where no replica said. */
  prompt_tokens_max: number;
  /** Its client wants nothing kept of it but what it adds to sums. */
  counts_only: boolean;
  /** Gives back what its body holds of the gateway's memory. */
  release(): void;
  /** Unix ms, and on the monotonic clock. */
  time_ms: number;
  began_ms: number;
}

/** How a request ends, as the ledger keeps it. */
export interface Outcome {
  status: number;
  usage?: TokenUsage | undefined;
  finish_reason?: string | undefined;
  error_code?: string | undefined;
}
