import type { IncomingHttpHeaders } from 'node:http';
import type { Qos } from '../../solver/routing/qos.ts';

/**
 * Headers in which OpenAI's clients say how long they wait for an answer, in seconds: that for JavaScript (`openai` 4
 * and later), that for Python (its time between two bytes).
 */
const timeoutHeaders = ['x-stainless-timeout', 'x-stainless-read-timeout'];
/**
 * What an answer takes on its way back, of the client's time. Lower: some clients give up first; higher: less
 * is waited.
 */
const return_ms_max = 1000;
const return_share = 0.1;

/**
 * How long a request may wait for a replica, as whoever sent it says: by `wait` of its quality of service, and by the
 * time after which its client gives up. Infinity where neither is said.
 */
export function clientPatience_ms(sent: IncomingHttpHeaders, qos: Qos | undefined): number {
  let patience_ms = qos?.wait_s === undefined ? Number.POSITIVE_INFINITY : 1000 * qos.wait_s;
  for (const name of timeoutHeaders) {
    const timeout_ms = 1000 * Number.parseFloat(String(sent[name]));
    // Clients write what they like there: what is no time says nothing.
    if (!(timeout_ms > 0)) continue;
    patience_ms = Math.min(patience_ms, timeout_ms - Math.min(return_ms_max, return_share * timeout_ms));
  }
  return patience_ms;
}
