import {
  createHash,
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  type KeyObject,
  sign,
  webcrypto,
} from 'node:crypto';
import { loadX509 } from './x509.ts';

const algorithm = { name: 'Ed25519' };

/**
 * Id of the session that owns a public key: the first 16 bytes of SHA-256 over its SPKI DER, in hex. The id
 * commits to the key, so nobody else can write a record of that id.
 */
export function sessionIdOfKey(spki: Uint8Array): string {
  return createHash('sha256').update(spki).digest('hex').slice(0, 32);
}

/**
 * The key of one session and the certificate it shows in TLS. Made in memory and never stored: a process
 * that starts again is a new session.
 */
export class SessionIdentity {
  readonly session_id: string;
  /** SPKI DER. */
  readonly public_key: Uint8Array;
  /** Self-signed, valid without bounds in practice: peers compare its key, never its names or dates. */
  readonly certificate_pem: string;
  readonly #private_key: KeyObject;

  private constructor(publicKey: Uint8Array, privateKey: KeyObject, certificate: string) {
    this.session_id = sessionIdOfKey(publicKey);
    this.public_key = publicKey;
    this.certificate_pem = certificate;
    this.#private_key = privateKey;
  }

  static async create(): Promise<SessionIdentity> {
    const { publicKey, privateKey } = generateKeyPairSync('ed25519');
    const spki = publicKey.export({ type: 'spki', format: 'der' });
    const pkcs8 = privateKey.export({ type: 'pkcs8', format: 'der' });
    const { subtle } = webcrypto;
    const { X509CertificateGenerator } = await loadX509();
    const certificate = await X509CertificateGenerator.createSelfSigned({
      serialNumber: '01',
      name: `CN=${sessionIdOfKey(spki)}`,
      // Clocks of nodes disagree; validity is the record's lifecycle, not the certificate's dates.
      notBefore: new Date('2000-01-01T00:00:00Z'),
      notAfter: new Date('2100-01-01T00:00:00Z'),
      signingAlgorithm: algorithm,
      keys: {
        publicKey: await subtle.importKey('spki', spki, algorithm, true, ['verify']),
        privateKey: await subtle.importKey('pkcs8', pkcs8, algorithm, false, ['sign']),
      },
    });
    return new SessionIdentity(spki, privateKey, certificate.toString('pem'));
  }

  /** The identity of a process that shows it in another one of its own, to which it gave both texts over a pipe. */
  static of(private_key_pem: string, certificate_pem: string): SessionIdentity {
    const private_key = createPrivateKey(private_key_pem);
    const spki = createPublicKey(private_key).export({ type: 'spki', format: 'der' });
    return new SessionIdentity(spki, private_key, certificate_pem);
  }

  /** Ed25519 signature of shape [64]. */
  sign(bytes: Uint8Array): Uint8Array {
    return sign(null, bytes, this.#private_key);
  }

  /** For TLS contexts of this process; never write it anywhere. */
  privateKeyPem(): string {
    return this.#private_key.export({ type: 'pkcs8', format: 'pem' }).toString();
  }
}
