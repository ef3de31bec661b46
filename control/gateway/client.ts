/**
 * Requests of commands to a gateway. By node:http, since every command asks, and fetch would take longer to load than
 * the answer to come; and since of a gateway with TLS exactly its own certificate is trusted, whoever issued it.
 */
import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { type IncomingMessage, type RequestOptions, request as requestHttp } from 'node:http';
import { request as requestHttps } from 'node:https';
import { text as readAll } from 'node:stream/consumers';
import { connect, type TLSSocket } from 'node:tls';
import { headers } from '../../spec/wire.ts';

/** Where a gateway answers, and what proves that it is the one; a `GatewayEndpoint` is one. */
export interface GatewayAddress {
  /** Any URL of it. */
  url: string;
  /**
   * PEM file with the certificate that it shows, and no authority's. Absent: an authority that Node trusts vouches for
   * it.
   */
  certificate_file?: string;
}

export interface GatewayRequest {
  method?: string;
  bearer?: string;
  /** Sent as JSON. */
  body?: unknown;
  signal: AbortSignal;
}

/**
 * The head of the answer; its body is the stream.
 * @param path with its query, such as `/health`
 * @throws the system's error where there is no connection, or the abort reason of the signal
 */
export async function askOverHttp(
  gateway: GatewayAddress,
  path: string,
  { method = 'GET', bearer, body, signal }: GatewayRequest,
): Promise<IncomingMessage> {
  const url = new URL(path, gateway.url);
  const content = body === undefined ? undefined : Buffer.from(JSON.stringify(body));
  const options: RequestOptions = {
    method,
    signal,
    headers: {
      ...(bearer === undefined ? {} : { authorization: `Bearer ${bearer}` }),
      ...(content ? { 'content-type': 'application/json', 'content-length': content.length } : {}),
    },
  };
  const pinned =
    gateway.certificate_file === undefined || url.protocol !== 'https:'
      ? undefined
      : await connectPinned(url, gateway.certificate_file, signal);
  return new Promise((resolve, reject) => {
    const request = pinned
      ? // Without an agent: one would make a connection of its own.
        requestHttp({
          ...options,
          host: bareHost(url),
          port: url.port || 443,
          path: `${url.pathname}${url.search}`,
          createConnection: () => pinned,
        })
      : (url.protocol === 'https:' ? requestHttps : requestHttp)(url, { ...options, agent: false });
    request.once('error', reject).once('response', resolve);
    request.end(content);
  });
}

/** The same, with the whole body as text. */
export async function askForText(
  gateway: GatewayAddress,
  path: string,
  request: GatewayRequest,
): Promise<GatewayAnswer> {
  const answer = await askOverHttp(gateway, path, request);
  return readAnswer(answer);
}

/** An answer as a whole. */
export interface GatewayAnswer {
  status: number;
  text: string;
  /** The registry's code of an error that the gateway itself answers with. */
  code?: string;
}

/** The rest of an answer whose head is there. */
export async function readAnswer(answer: IncomingMessage): Promise<GatewayAnswer> {
  const code = answer.headers[headers.error_code];
  const text = await readAll(answer);
  const read: GatewayAnswer = { status: answer.statusCode ?? 0, text };
  if (typeof code === 'string') read.code = code;
  return read;
}

const pemBlocks = /-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g;

/** A connection to who owns the key of this certificate: nothing is sent before that is proved. */
function connectPinned(url: URL, certificate_file: string, signal: AbortSignal): Promise<TLSSocket> {
  // While the gateway changes its certificate, the old one stands behind the new.
  const known = readFileSync(certificate_file, 'utf8').match(pemBlocks) ?? [];
  const expected = known.map((pem) => new X509Certificate(pem).raw);
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    // Compared below, so that neither names nor dates nor authorities matter.
    const socket = connect({
      host: bareHost(url),
      port: Number(url.port || 443),
      rejectUnauthorized: false,
      ALPNProtocols: ['http/1.1'],
    });
    const abort = (): void => void socket.destroy(signal.reason as Error);
    signal.addEventListener('abort', abort, { once: true });
    socket.once('close', () => signal.removeEventListener('abort', abort));
    socket.once('error', reject);
    socket.once('secureConnect', () => {
      const shown = socket.getPeerX509Certificate()?.raw;
      if (shown && expected.some((raw) => raw.equals(shown))) {
        // From here on it is the request's.
        signal.removeEventListener('abort', abort);
        socket.off('error', reject);
        resolve(socket);
      } else socket.destroy(new Error(`another certificate is shown there than that of ${certificate_file}`));
    });
  });
}

function bareHost({ hostname }: URL): string {
  return hostname.replace(/^\[|\]$/g, '');
}

/** fetch hides the system's reason in `cause`. */
export function reasonOf(error: unknown): string {
  const { cause } = error as { cause?: unknown };
  if (cause instanceof AggregateError && cause.errors.length > 0) return String(cause.errors[0]);
  if (error instanceof AggregateError && error.errors.length > 0) return String(error.errors[0]);
  if (cause instanceof Error) return cause.message;
  return error instanceof Error ? error.message : String(error);
}
