import { loadWaitDefault_s } from '../spec/gateway-settings.ts';
import type { ClientServerTimes } from './client-servers.ts';

export interface GatewayTimes extends ClientServerTimes {
  /** How long answers may still take when the gateway stops. */
  drain_ms: number;
  /** Of the mesh folder. */
  poll_ms: number;
  /** Of the keys' folder: how long another gateway's revocation may take to be seen. Higher: less to read. */
  keys_ms: number;
  /** Between two exchanges of what limited keys used with the other gateways; see `KeyLimits`. */
  limits_ms: number;
  /**
   * How long a stream whose replica broke waits for another. Lower: errors show sooner; higher: restarts are outlived.
   */
  continue_ms: number;
  /**
   * The same where a replica of its model is loading or a job is to bring one, and for requests that wait for a load:
   * `gateway.load_wait_s`.
   */
  load_wait_ms: number;
  /** A stream that waits says so as often. Lower: more to send; higher: what lies between may give it up. */
  comment_ms: number;
  /**
   * A client that takes no bytes of its answer for so long is cut off. Lower: its replica and its memory are free for
   * others sooner; higher: slower connections are outlived.
   */
  stall_ms: number;
  /** Between two requests to the receiver of traces. */
  export_ms: number;
  /** Between two looks for models that are split over devices; see `Defragmenter`. */
  defragment_ms: number;
}

export const defaultTimes: GatewayTimes = {
  headers_ms: 10_000,
  request_ms: 60_000,
  keep_alive_ms: 75_000,
  drain_ms: 30_000,
  check_ms: 5000,
  poll_ms: 1000,
  keys_ms: 2000,
  limits_ms: 1000,
  continue_ms: 10_000,
  load_wait_ms: 1000 * loadWaitDefault_s,
  comment_ms: 15_000,
  stall_ms: 60_000,
  export_ms: 5000,
  defragment_ms: 2000,
};
