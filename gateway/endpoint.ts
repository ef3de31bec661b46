import { hostname } from 'node:os';
import { HpcserveError } from '../spec/errors/error.ts';
import type { GatewayConfig, GatewayEndpoint, TakenPort } from '../spec/state-layout.ts';
import type { ClientTls } from './client-tls.ts';
import type { FrontPort } from './front-port.ts';
import { readEndpoint, startOf, writeTakenPort } from './gateway-files.ts';
import type { GatewayLog } from './log.ts';

/** The port of the last run, where it can be had. Throws E_GATEWAY_PORT. */
export async function listenAsBefore(
  front: FrontPort,
  { gateway_folder, host, port }: GatewayConfig,
  log: GatewayLog,
): Promise<number> {
  const previous = readEndpoint(gateway_folder);
  const note = (taken: TakenPort | undefined): void => {
    // A port that was never this gateway's has been given no key.
    if (!taken || taken.port !== previous?.port || previous.hostname !== hostname()) return;
    writeTakenPort(gateway_folder, taken);
    log.error(
      { ...taken },
      'another user had the port of this gateway: who asked there may have shown his key; revoke such keys with `hpcserve keys revoke`',
    );
  };
  try {
    const found = await front.listen({ host, port, previous: previous?.host === host ? previous.port : 0 });
    note(found.taken);
    return found.port;
  } catch (error) {
    if (error instanceof HpcserveError) note(error.details.taken as TakenPort | undefined);
    throw error;
  }
}

/** What others find in the gateway's folder: where it answers, and who it is. */
export function describeEndpoint(
  { host, socket }: GatewayConfig,
  tls: ClientTls | undefined,
  port: number,
  session_id: string,
): GatewayEndpoint {
  const endpoint: GatewayEndpoint = {
    format: 1,
    url: `${tls ? 'https' : 'http'}://${urlHost(publicHost(host))}:${port}`,
    hostname: hostname(),
    host,
    port,
    pid: process.pid,
    session_id,
    started_at_ms: Date.now(),
  };
  if (process.env.SLURM_JOB_ID) endpoint.job_id = process.env.SLURM_JOB_ID;
  const process_started = startOf(process.pid);
  if (process_started) endpoint.process = process_started;
  if (tls) endpoint.certificate_file = tls.certificate_file;
  if (tls?.ca_file !== undefined) endpoint.ca_file = tls.ca_file;
  if (socket !== undefined) endpoint.socket = socket;
  return endpoint;
}

/** The name under which others reach a gateway that listens on every interface. */
export function publicHost(host: string): string {
  return host === '0.0.0.0' || host === '::' ? hostname() : host;
}

function urlHost(host: string): string {
  return host.includes(':') ? `[${host}]` : host;
}
