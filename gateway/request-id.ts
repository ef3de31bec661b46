import { randomBytes } from 'node:crypto';

const process_prefix = `req_${randomBytes(9).toString('base64url')}`;
let count = 0;

/** An id unique to this request: random for the process, counted within it. */
function newRequestId(): string {
  count++;
  return process_prefix + count.toString(36);
}

/** The client's own id where it is harmless in logs and headers, else a new one. */
export function requestIdOf(sent: string | string[] | undefined): string {
  if (sent === undefined) return newRequestId();
  return typeof sent === 'string' && /^[A-Za-z0-9._:@/+=-]{1,128}$/.test(sent) ? sent : newRequestId();
}
