/**
 * A key that is shown with its certificate. ssh2 can send plain keys only; what is different with a certificate is the
 * request (RFC 4252 §7): it names the certificate's algorithm and brings the certificate, and its signature names the
 * key's. So this request is written here, and ssh2 does the rest: asking first, questions, the next way where it is
 * refused.
 */
import { createRequire } from 'node:module';
import type { Client, ParsedKey } from 'ssh2';
import { type UserCertificate, wireStrings } from './certificate.ts';
import { ssh2 } from './library.ts';

/**
 * @param data what the server checks the signature over
 * @returns the signature as it travels, with its algorithm's name
 */
export type Sign = (data: Buffer) => Promise<Buffer>;

interface CertifiedKey {
  certificate: UserCertificate;
  sign: Sign;
}

/** What of ssh2's own is used, in the version that package.json pins. */
interface Protocol {
  authPK(user: string, key: object, algorithm?: string, sign?: unknown): void;
  /** A request that proves nothing: its refusal leads to the next way. */
  authNone(user: string): void;
  _kex: { sessionID: Buffer };
  _packetRW: {
    write: { allocStart: number; alloc(bytes: number): Buffer; finalize(packet: Buffer): Buffer };
  };
  _authsQueue: string[];
}

interface ProtocolTools {
  sendPacket(protocol: Protocol, packet: Buffer): void;
  convertSignature(signature: Buffer, key_type: string): Buffer;
}

const userauth_request = 50;
/** How RSA keys sign: with SHA-1, as their type says, nobody accepts it any more. */
const rsa_signature = 'rsa-sha2-512';
const certified = new WeakMap<object, CertifiedKey>();
const load = createRequire(import.meta.url);
const tools = (): ProtocolTools => load('ssh2/lib/protocol/utils.js') as ProtocolTools;

/** A key for ssh2's way `publickey`, on a client that `acceptCertified` was called for. */
export function certifiedKey(certificate: UserCertificate, sign: Sign): ParsedKey {
  // Something that ssh2 takes for a private key: it is asked nothing but that.
  const { private: pem } = ssh2().utils.generateKeyPairSync('ed25519');
  const key = Object.create(ssh2().utils.parseKey(pem) as ParsedKey) as ParsedKey;
  certified.set(key, { certificate, sign });
  return key;
}

/** Signatures by a private key in a file. */
export function signByKey(key: ParsedKey): Sign {
  const isRsa = key.type === 'ssh-rsa';
  return async (data) => {
    const signature = isRsa ? key.sign(data, 'sha512') : key.sign(data);
    if (signature instanceof Error) throw signature;
    return wireStrings(
      isRsa ? rsa_signature : key.type,
      tools().convertSignature(signature as Buffer, key.type),
    );
  };
}

/** Once `connect` of the client was called. */
export function acceptCertified(client: Client): void {
  const protocol = (client as unknown as { _protocol: Protocol })._protocol;
  const plain = protocol.authPK;
  protocol.authPK = (user, key, algorithm, sign) => {
    const known = certified.get(key);
    if (!known) return plain.call(protocol, user, key, algorithm, sign);
    const asked = request(user, known.certificate, sign !== undefined);
    if (sign === undefined) return send(protocol, asked);
    known.sign(Buffer.concat([wireStrings(protocol._kex.sessionID), asked])).then(
      (signature) => send(protocol, Buffer.concat([asked, wireStrings(signature)])),
      () => protocol.authNone(user),
    );
  };
}

function request(user: string, { blob, key_type }: UserCertificate, signed: boolean): Buffer {
  const algorithm = key_type === 'ssh-rsa' ? rsa_signature : key_type.replace('@openssh.com', '');
  return Buffer.concat([
    Buffer.of(userauth_request),
    wireStrings(user, 'ssh-connection', 'publickey'),
    Buffer.of(Number(signed)),
    wireStrings(`${algorithm}-cert-v01@openssh.com`, blob),
  ]);
}

function send(protocol: Protocol, payload: Buffer): void {
  const { write } = protocol._packetRW;
  protocol._authsQueue.push('publickey');
  const start = write.allocStart;
  const packet = write.alloc(payload.length);
  packet.set(payload, start);
  tools().sendPacket(protocol, write.finalize(packet));
}
