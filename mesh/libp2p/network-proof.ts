import { createCipheriv, createHmac, hkdfSync, randomBytes, timingSafeEqual } from 'node:crypto';
import type {
  AbortOptions,
  ConnectionProtector,
  MessageStream,
  MultiaddrConnection,
} from '@libp2p/interface';
import { AbstractMultiaddrConnection, byteStream, type SendResult } from '@libp2p/utils';

const nonce_bytes = 24;
const proof_bytes = 32;
/** Of a key and the first counter of AES-256-CTR. */
const stream_key_bytes = 32 + 16;
/**
 * What may wait to be read of somebody who has proved nothing. Lower: less memory for strangers; what the socket gives
 * at once must fit.
 */
const unproved_bytes_max = 128 * 1024;
/**
 * Connections at most that have not proved the network key; of more, the oldest ends. Lower: less memory and fewer open
 * files that strangers can take; higher: a member that comes while `n` strangers come a second has longer to prove
 * itself, `unauthenticated_max / n` seconds, of which it needs one round trip. They are counted together and not by
 * address: members behind one tunnel share theirs.
 */
const unauthenticated_max_default = 512;

type Cipher = ReturnType<typeof createCipheriv>;
type Part = 'dialer' | 'listener';
const otherPart = { dialer: 'listener', listener: 'dialer' } as const;

export interface NetworkProofOptions {
  /** 32 bytes. */
  key: Uint8Array;
  /** A connection from outside ended before it proved to have the key. */
  onUnauthenticated: () => void;
  unauthenticated_max?: number;
}

/**
 * The first bytes of every connection of the mesh: both ends prove that they have the network key, and all that follows
 * is enciphered under it, as in libp2p's private networks (pnet). That noise hides and authenticates the rest is not
 * enough: it lets anybody in who has a key of his own.
 *
 * Each end sends 24 random bytes, and then an HMAC over those of both under the network key, with its part (who dialed,
 * who was dialed), so that nobody gets in by saying again what he heard. The keys of the two directions come from the
 * same bytes. The cipher is AES-256-CTR of Node's own OpenSSL: each connection has its own state, which is freed with
 * it.
 */
export class NetworkProof implements ConnectionProtector {
  readonly #key: Uint8Array;
  readonly #unauthenticated: UnauthenticatedConnections;

  constructor({
    key,
    onUnauthenticated,
    unauthenticated_max = unauthenticated_max_default,
  }: NetworkProofOptions) {
    this.#key = key;
    this.#unauthenticated = new UnauthenticatedConnections(unauthenticated_max, onUnauthenticated);
  }

  /**
   * @returns the connection behind the cipher
   * @throws Error where the other end does not have the key, or does not prove it before `options.signal` says so;
   * libp2p then ends the connection
   */
  async protect(connection: MessageStream, options?: AbortOptions): Promise<MessageStream> {
    const part: Part = connection.direction === 'inbound' ? 'listener' : 'dialer';
    if (part === 'listener') this.#unauthenticated.add(connection);
    const bytes = byteStream(connection, { maxBufferSize: unproved_bytes_max });
    const own = randomBytes(nonce_bytes);
    const [read] = await Promise.all([
      bytes.read({ bytes: nonce_bytes, ...options }),
      bytes.write(own, options),
    ]);
    const theirs = read.subarray();
    const nonces = Buffer.concat(part === 'dialer' ? [own, theirs] : [theirs, own]);
    const [proof] = await Promise.all([
      bytes.read({ bytes: proof_bytes, ...options }),
      bytes.write(this.#proof(part, nonces), options),
    ]);
    if (!timingSafeEqual(proof.subarray(), this.#proof(otherPart[part], nonces))) {
      throw new Error('it does not have the network key of this mesh');
    }
    if (part === 'listener') this.#unauthenticated.proved(connection);
    return new EncipheredConnection(bytes.unwrap() as MultiaddrConnection, {
      inbound: this.#cipher(otherPart[part], nonces),
      outbound: this.#cipher(part, nonces),
    });
  }

  #proof(part: Part, nonces: Uint8Array): Buffer {
    return createHmac('sha256', this.#key)
      .update(`hpcserve network proof v1: ${part}\0`)
      .update(nonces)
      .digest();
  }

  /** Of what this end says. */
  #cipher(part: Part, nonces: Uint8Array): Cipher {
    const label = `hpcserve private network v2: ${part}`;
    const stream = new Uint8Array(hkdfSync('sha256', this.#key, nonces, label, stream_key_bytes));
    return createCipheriv('aes-256-ctr', stream.subarray(0, 32), stream.subarray(32));
  }
}

/** Connections from outside that have proved nothing yet, the oldest first. */
class UnauthenticatedConnections {
  readonly #waiting = new Set<MessageStream>();
  readonly #waiting_max: number;
  readonly #onUnauthenticated: () => void;

  constructor(waiting_max: number, onUnauthenticated: () => void) {
    this.#waiting_max = waiting_max;
    this.#onUnauthenticated = onUnauthenticated;
  }

  add(connection: MessageStream): void {
    this.#waiting.add(connection);
    connection.addEventListener('close', () => {
      if (this.#waiting.delete(connection)) this.#onUnauthenticated();
    });
    if (this.#waiting.size <= this.#waiting_max) return;
    const [oldest] = this.#waiting;
    oldest!.abort(new Error('others came, and it had not proved to have the network key'));
  }

  proved(connection: MessageStream): void {
    this.#waiting.delete(connection);
  }
}

/** What goes over a connection, enciphered; back pressure and endings go through as they are. */
class EncipheredConnection extends AbstractMultiaddrConnection {
  readonly #connection: MultiaddrConnection;
  readonly #outbound: Cipher;

  constructor(
    connection: MultiaddrConnection,
    { inbound, outbound }: Record<'inbound' | 'outbound', Cipher>,
  ) {
    const { remoteAddr, direction } = connection;
    super({ remoteAddr, direction, log: connection.log.newScope('network-proof') });
    this.#connection = connection;
    this.#outbound = outbound;
    connection.addEventListener('message', ({ data }) => {
      this.onData(inbound.update(data instanceof Uint8Array ? data : data.subarray()));
    });
    connection.addEventListener('drain', () => this.onMuxerDrain());
    connection.addEventListener('close', (event) => {
      if (event.error === undefined) this.onTransportClosed();
      else if (event.local) this.abort(event.error);
      else this.onRemoteReset();
    });
  }

  override sendData(data: Parameters<AbstractMultiaddrConnection['sendData']>[0]): SendResult {
    const sentBytes = data.byteLength;
    return { sentBytes, canSendMore: this.#connection.send(this.#outbound.update(data.subarray())) };
  }

  override async sendClose(options?: AbortOptions): Promise<void> {
    await this.#connection.close(options);
  }

  override sendReset(error: Error): void {
    this.#connection.abort(error);
  }

  override sendPause(): void {
    this.#connection.pause();
  }

  override sendResume(): void {
    this.#connection.resume();
  }
}
