/** A user's OpenSSH certificate: a public key that an authority of the site vouches for, often for some hours only. */
import { readFileSync } from 'node:fs';

/** Fields of a key in its certificate, between the nonce and the serial number (OpenSSH's PROTOCOL.certkeys). */
const key_fields: Readonly<Record<string, number>> = {
  'ssh-ed25519': 1,
  'ssh-rsa': 2,
  'ecdsa-sha2-nistp256': 2,
  'ecdsa-sha2-nistp384': 2,
  'ecdsa-sha2-nistp521': 2,
  'sk-ssh-ed25519@openssh.com': 2,
  'sk-ecdsa-sha2-nistp256@openssh.com': 3,
};
const suffix = '-cert-v01@openssh.com';
const of_user = 1;

export interface UserCertificate {
  /** As it travels. */
  blob: Buffer;
  /** Type of the key that it is for, `ssh-ed25519`. */
  key_type: string;
  /** That key without its certificate, as it travels. */
  public_key: Buffer;
  /** Seconds since 1970 by the authority's clock; Infinity: for ever. */
  valid_before_s: number;
}

/** @returns undefined for anything else, a host's certificate too */
export function parseCertificate(blob: Buffer): UserCertificate | undefined {
  try {
    const reader = new WireReader(blob);
    const type = reader.text();
    if (!type.endsWith(suffix)) return undefined;
    const name = type.slice(0, -suffix.length);
    const key_type = name.startsWith('sk-') ? `${name}@openssh.com` : name;
    const fields = key_fields[key_type];
    if (fields === undefined) return undefined;
    reader.bytes();
    const key = Array.from({ length: fields }, () => reader.bytes());
    reader.skip(8);
    if (reader.uint32() !== of_user) return undefined;
    reader.bytes();
    reader.bytes();
    reader.skip(8);
    const before = reader.uint64();
    return {
      blob,
      key_type,
      public_key: wireStrings(key_type, ...key),
      valid_before_s: before === 2n ** 64n - 1n ? Number.POSITIVE_INFINITY : Number(before),
    };
  } catch (error) {
    // Not as long as it says.
    if (error instanceof RangeError) return undefined;
    throw error;
  }
}

/** @returns undefined where the file is not there, of somebody else, or no user's certificate */
export function readCertificate(path: string): UserCertificate | undefined {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    if (['ENOENT', 'EACCES'].includes((error as NodeJS.ErrnoException).code ?? '')) return undefined;
    throw error;
  }
  return parseCertificate(Buffer.from(/^\S+\s+(\S+)/.exec(text)?.[1] ?? '', 'base64'));
}

/** For people: `certificate, which ended at …`. */
export function describeCertificate({ valid_before_s }: UserCertificate, now_ms: number): string {
  if (!Number.isFinite(valid_before_s)) return 'with its certificate';
  const end = new Date(valid_before_s * 1000);
  const when = Number.isNaN(end.getTime()) ? `${valid_before_s} s after 1970` : end.toISOString();
  return `with its certificate, which ${end.getTime() <= now_ms ? 'ended' : 'ends'} ${when}`;
}

/** Type, nonce and so on as the protocol writes them: a length in 4 bytes, and so many bytes. */
export class WireReader {
  readonly #buffer: Buffer;
  #at = 0;

  constructor(buffer: Buffer) {
    this.#buffer = buffer;
  }

  /** @throws RangeError where it ends before, as all of these */
  bytes(): Buffer {
    const length = this.uint32();
    this.skip(length);
    return this.#buffer.subarray(this.#at - length, this.#at);
  }

  text(): string {
    return this.bytes().toString('utf8');
  }

  uint32(): number {
    this.skip(4);
    return this.#buffer.readUInt32BE(this.#at - 4);
  }

  uint64(): bigint {
    this.skip(8);
    return this.#buffer.readBigUInt64BE(this.#at - 8);
  }

  skip(bytes: number): void {
    if (this.#at + bytes > this.#buffer.length) throw new RangeError('it ends before');
    this.#at += bytes;
  }
}

export function wireStrings(...values: (string | Buffer)[]): Buffer {
  return Buffer.concat(
    values.flatMap((value) => {
      const bytes = Buffer.from(value as string);
      const length = Buffer.alloc(4);
      length.writeUInt32BE(bytes.length);
      return [length, bytes];
    }),
  );
}
