/**
 * TLS 1.3 between members of a mesh, mutually authenticated and pinned: each side compares the public key of
 * the certificate it is shown with a session record. No names, no dates, no certificate authorities.
 */
import type { X509Certificate } from 'node:crypto';
import type { Duplex } from 'node:stream';
import { createSecureContext, type TLSSocket, type TlsOptions, connect as tlsConnect } from 'node:tls';
import type { buildConnector } from 'undici';
import { HpcserveError } from '../spec/errors/error.ts';
import type { SessionRecord } from '../spec/session-record.ts';
import { sessionServerName } from '../spec/wire.ts';
import type { Registry } from './registry.ts';
import type { RelayFallback } from './relay-fallback.ts';
import { type SessionIdentity, sessionIdOfKey } from './session-identity.ts';

const httpAlone: readonly string[] = ['http/1.1'];

/**
 * Options for `tls.createServer` (or `https.createServer`) of one port that serves one or many sessions. The
 * server name a client sends picks the session whose key is shown; an unknown or absent name ends the handshake.
 * Clients must show a certificate; which one is judged by `authorizePeer`, so call that before a request is read.
 *
 * @param resolve the identity behind a session id, undefined where there is none here
 * @param protocols what the server speaks (ALPN), the best first
 */
export function sessionTlsServerOptions(
  resolve: (sessionId: string) => SessionIdentity | undefined,
  protocols: readonly string[] = httpAlone,
): TlsOptions {
  return {
    minVersion: 'TLSv1.3',
    requestCert: true,
    // Certificates are self-signed by design: the chain says nothing, the key is compared instead.
    rejectUnauthorized: false,
    ALPNProtocols: [...protocols],
    SNICallback: (serverName, done) => {
      const sessionId = /^([0-9a-f]{32})\./.exec(serverName)?.[1];
      const identity = sessionId === undefined ? undefined : resolve(sessionId);
      if (!identity || serverName !== sessionServerName(identity.session_id)) {
        done(new Error(`no session of the name ${serverName.slice(0, 128)} is here`));
        return;
      }
      done(null, contextOf(identity));
    },
  };
}

/** The key a peer proved to own in the handshake, as SPKI DER; undefined where it showed none. */
export function peerPublicKey(socket: TLSSocket): Uint8Array | undefined {
  const certificate: X509Certificate | undefined = socket.getPeerX509Certificate();
  return certificate?.publicKey.export({ type: 'spki', format: 'der' });
}

/**
 * The live record (JOIN, SERVING or DOWN) that names the key of a connected client. A key that is not known
 * yet makes the registry look once more, because a peer may connect before its record has been noticed;
 * `registry.refresh` is shared and rate limited, so strangers cannot turn this into load on the filesystem.
 *
 * @throws HpcserveError E_MESH_PEER
 */
export async function authorizePeer(socket: TLSSocket, registry: Registry): Promise<SessionRecord> {
  const key = peerPublicKey(socket);
  if (!key) throw refused(socket, 'it showed no certificate');
  const sessionId = sessionIdOfKey(key);
  let record = registry.get(sessionId);
  if (!record) {
    await registry.refresh();
    record = registry.get(sessionId);
  }
  if (!record) throw refused(socket, `no record of this mesh names its key (session ${sessionId})`);
  if (record.lifecycle === 'LEFT') throw refused(socket, `session ${sessionId} has left the mesh`);
  return record;
}

export interface PinnedOptions {
  /**
   * For one way, connect and handshake together. Lower: dead nodes are passed over sooner; higher: slow links are given
   * time.
   */
  timeout_ms?: number;
  /** A way where the addresses of the record lead nowhere. */
  relayFallback?: RelayFallback;
  /**
   * Takes what arrives, in place of the socket's `data` events; the bytes are valid during the call only. They come in
   * one buffer that all such sockets share, since a buffer and a turn of the stream machinery for each arrival cost
   * more than reading it.
   */
  read?: (bytes: Buffer) => void;
  /** What may be spoken, the best first; `alpnProtocol` of the socket says what the peer chose. HTTP/1.1 by default. */
  protocols?: readonly string[];
}

/** What arrives at sockets with a `read` of their own; nothing stays in it beyond the call. */
const arrivals = Buffer.allocUnsafeSlow(64 * 1024);

/** Base URL for requests to a session: `new Pool(sessionOrigin(record), { connect: pinnedConnector(record, own) })`. */
export function sessionOrigin(record: Pick<SessionRecord, 'session_id'>): string {
  return `https://${sessionServerName(record.session_id)}`;
}

/**
 * A connector for undici's Client, Pool and Agent that reaches exactly one session: it tries the record's
 * addresses in order, shows the certificate of `own`, and accepts only a server that proves to own the record's
 * key. The URL's host plays no part. Errors: HpcserveError E_MESH_PINNING, E_MESH_CONNECT.
 *
 * ```ts
 * const pool = new Pool(sessionOrigin(record), { connect: pinnedConnector(record, identity) });
 * const answer = await pool.request({ path: '/v1/chat/completions', method: 'POST', headers, body });
 * ```
 *
 */
export function pinnedConnector(
  record: SessionRecord,
  own: SessionIdentity,
  options: PinnedOptions = {},
): buildConnector.connector {
  return (_target, callback) => {
    pinnedConnect(record, own, options).then(
      (socket) => callback(null, socket),
      (error: unknown) => callback(HpcserveError.from(error), null),
    );
  };
}

/**
 * A connected, verified socket to a session; see `pinnedConnector`.
 *
 * @throws HpcserveError E_MESH_PINNING, E_MESH_CONNECT
 */
export async function pinnedConnect(
  record: SessionRecord,
  own: SessionIdentity,
  { timeout_ms = 3000, relayFallback, read, protocols = httpAlone }: PinnedOptions = {},
): Promise<TLSSocket> {
  const failures: string[] = [];
  const isPreferred = relayFallback?.isPreferred(record) === true;
  const direct = record.metadata.addresses.map(({ host, port }) => ({
    name: `${host}:${port}`,
    connect: () =>
      handshake({ host, port }, { name: `${host}:${port}`, record, own, timeout_ms, read, protocols }),
  }));
  const around = {
    name: 'through its peer',
    connect: async () => {
      const way = { socket: await relayFallback!.open(record) };
      const socket = await handshake(way, { name: 'its peer', record, own, timeout_ms, read, protocols });
      if (!isPreferred) relayFallback!.took(record); // a direct way may have been found meanwhile
      return socket;
    },
  };
  // Who asks does not wait for a firewall that drops what comes: a direct way is looked for beside.
  if (relayFallback?.isLookDue(record)) void lookForDirectWay(direct, () => relayFallback.forget(record));
  const ways = !relayFallback ? direct : isPreferred ? [around, ...direct] : [...direct, around];
  for (const { name, connect } of ways) {
    try {
      return await connect();
    } catch (error) {
      if (error instanceof HpcserveError) throw error;
      failures.push(`${name}: ${(error as Error).message}`);
    }
  }
  throw new HpcserveError('E_MESH_CONNECT', {
    what: `session ${record.session_id} on ${record.metadata.node} cannot be reached`,
    because: failures.length > 0 ? failures : 'its record lists no address',
    details: { session_id: record.session_id },
  });
}

/** Whom a connection must lead to. */
export type PinnedPeer = Pick<SessionRecord, 'session_id' | 'public_key'>;

/**
 * A connected, verified socket at an address that the peer told over an authenticated way.
 *
 * @throws HpcserveError E_MESH_PINNING; Error: nobody answers there
 */
export function pinnedConnectAt(
  { host, port }: { host: string; port: number },
  peer: PinnedPeer,
  own: SessionIdentity,
  timeout_ms: number,
): Promise<TLSSocket> {
  return handshake(
    { host, port },
    { name: `${host}:${port}`, record: peer, own, timeout_ms, read: undefined, protocols: httpAlone },
  );
}

interface Handshake {
  /** Of the way, for messages. */
  name: string;
  record: PinnedPeer;
  own: SessionIdentity;
  timeout_ms: number;
  read: PinnedOptions['read'];
  protocols: readonly string[];
}

async function lookForDirectWay(
  ways: readonly { connect: () => Promise<TLSSocket> }[],
  onFound: () => void,
): Promise<void> {
  for (const { connect } of ways) {
    const socket = await connect().catch(() => undefined); // none yet: looked for again later
    if (!socket) continue;
    socket.destroy();
    onFound();
    return;
  }
}

function handshake(
  way: { host: string; port: number } | { socket: Duplex },
  { name, record, own, timeout_ms, read, protocols }: Handshake,
): Promise<TLSSocket> {
  return new Promise((resolve, reject) => {
    const socket = tlsConnect({
      ...way,
      ...(read && 'host' in way ? { onread: { buffer: arrivals, callback: arrived } } : {}),
      servername: sessionServerName(record.session_id),
      secureContext: contextOf(own),
      minVersion: 'TLSv1.3',
      ALPNProtocols: [...protocols],
      rejectUnauthorized: false, // the key is compared below, before a byte is sent
    });
    const deadline = setTimeout(() => {
      socket.destroy(new Error(`no answer within ${timeout_ms} ms`));
    }, timeout_ms);
    const fail = (error: Error): void => {
      clearTimeout(deadline);
      reject(error);
    };
    socket.once('error', fail);
    socket.once('secureConnect', () => {
      clearTimeout(deadline); // `fail` stays attached: an error before the caller listens must not be unhandled
      const shown = peerPublicKey(socket);
      if (!shown || Buffer.from(shown).toString('base64') !== record.public_key) {
        socket.destroy();
        reject(
          new HpcserveError('E_MESH_PINNING', {
            what: `${name} is not session ${record.session_id}`,
            because: shown
              ? `it owns the key of session ${sessionIdOfKey(shown)}`
              : 'it showed no certificate',
            details: { session_id: record.session_id, way: name },
          }),
        );
        return;
      }
      socket.setNoDelay(true);
      if (read) {
        // A socket over a stream has no buffer of its own choosing. Either flows, or its end would not be told.
        if ('socket' in way) socket.on('data', read);
        socket.resume();
      }
      resolve(socket);
    });
    function arrived(length: number): boolean {
      read!(arrivals.subarray(0, length));
      return !socket.isPaused();
    }
  });
}

const contexts = new WeakMap<SessionIdentity, ReturnType<typeof createSecureContext>>();

function contextOf(identity: SessionIdentity): ReturnType<typeof createSecureContext> {
  let context = contexts.get(identity);
  if (!context) {
    context = createSecureContext({
      key: identity.privateKeyPem(),
      cert: identity.certificate_pem,
      minVersion: 'TLSv1.3',
    });
    contexts.set(identity, context);
  }
  return context;
}

function refused(socket: TLSSocket, because: string): HpcserveError {
  return new HpcserveError('E_MESH_PEER', {
    what: `the peer ${socket.remoteAddress ?? 'that has gone'} is not a member of this mesh`,
    because,
  });
}
