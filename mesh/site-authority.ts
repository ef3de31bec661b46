import { createPrivateKey, randomBytes, webcrypto, X509Certificate } from 'node:crypto';
import { chmodSync, linkSync, readFileSync, unlinkSync, writeFileSync } from 'node:fs';
import { isIP } from 'node:net';
import { join } from 'node:path';
import type { X509Certificate as X509 } from '@peculiar/x509';
import { makeFolders } from '../host/make-folders.ts';
import { writeFileAtomically } from '../host/whole-file.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { tlsFiles } from '../spec/state-layout.ts';
import { loadX509 } from './x509.ts';

/** What every TLS client knows. */
const algorithm = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' };
const day_ms = 86_400_000;
/** Clients keep the authority's certificate, so it stays. */
const authority_days = 20 * 365;
/** Some clients take no longer ones. */
const certificate_days = 397;

export interface IssuedCertificate {
  /** PEM, without the authority's. */
  certificate: string;
  /** PEM; it is written nowhere. */
  key: string;
}

/** A certificate authority of one site, so that clients of its gateways can use HTTPS without a public one. */
export class SiteAuthority {
  /** What clients are to trust. */
  readonly ca_file: string;
  readonly #certificate: X509;
  readonly #key: webcrypto.CryptoKey;

  private constructor(ca_file: string, certificate: X509, key: webcrypto.CryptoKey) {
    this.ca_file = ca_file;
    this.#certificate = certificate;
    this.#key = key;
  }

  /**
   * The authority in this folder, made where there is none; of several gateways that come at once, one makes it.
   * @throws HpcserveError E_GATEWAY_CONFIG where its files cannot be used
   */
  static async open(folder: string): Promise<SiteAuthority> {
    const key_file = join(folder, tlsFiles.ca_key);
    const ca_file = join(folder, tlsFiles.ca);
    try {
      makeFolders(folder);
      let both = readIfThere(key_file);
      if (both === undefined) {
        writeOnce(key_file, await makeAuthority());
        both = readFileSync(key_file, 'utf8');
      }
      chmodSync(key_file, 0o600);
      const pem = new X509Certificate(both).toString();
      if (readIfThere(ca_file) !== pem) writeFileAtomically(ca_file, pem, { mode: 0o644 });
      const der = createPrivateKey(both).export({ type: 'pkcs8', format: 'der' });
      const key = await webcrypto.subtle.importKey('pkcs8', der, algorithm, false, ['sign']);
      const x509 = await loadX509();
      return new SiteAuthority(ca_file, new x509.X509Certificate(pem), key);
    } catch (error) {
      throw new HpcserveError('E_GATEWAY_CONFIG', {
        what: `the certificate authority in ${folder} cannot be used`,
        because: (error as Error).message,
        try: `move ${folder} away: another one is made, and clients must be given its ${tlsFiles.ca}`,
        cause: error,
      });
    }
  }

  /** A certificate for a server with these names and addresses, with a key of its own. */
  async issue(names: readonly string[]): Promise<IssuedCertificate> {
    const x509 = await loadX509();
    const keys = await webcrypto.subtle.generateKey(algorithm, true, ['sign', 'verify']);
    const certificate = await x509.X509CertificateGenerator.create({
      serialNumber: randomBytes(16).toString('hex'),
      subject: [{ CN: ['hpcserve gateway'] }],
      issuer: this.#certificate.subject,
      ...validity(certificate_days),
      signingAlgorithm: algorithm,
      publicKey: keys.publicKey,
      signingKey: this.#key,
      extensions: [
        new x509.BasicConstraintsExtension(false, undefined, true),
        new x509.KeyUsagesExtension(x509.KeyUsageFlags.digitalSignature, true),
        new x509.ExtendedKeyUsageExtension([x509.ExtendedKeyUsage.serverAuth]),
        new x509.SubjectAlternativeNameExtension(
          [...new Set(names)].map((value) => ({ type: isIP(value) === 0 ? 'dns' : 'ip', value })),
        ),
        await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
        await x509.AuthorityKeyIdentifierExtension.create(this.#certificate.publicKey),
      ],
    });
    const pkcs8 = await webcrypto.subtle.exportKey('pkcs8', keys.privateKey);
    return { certificate: `${certificate.toString('pem')}\n`, key: privatePem(Buffer.from(pkcs8)) };
  }
}

/** Key and certificate in one file, so that there are never two that do not fit. */
async function makeAuthority(): Promise<string> {
  const x509 = await loadX509();
  const keys = await webcrypto.subtle.generateKey(algorithm, true, ['sign', 'verify']);
  const certificate = await x509.X509CertificateGenerator.createSelfSigned({
    serialNumber: randomBytes(16).toString('hex'),
    name: [{ CN: [`hpcserve ${randomBytes(4).toString('hex')}`] }],
    ...validity(authority_days),
    signingAlgorithm: algorithm,
    keys,
    extensions: [
      new x509.BasicConstraintsExtension(true, 0, true),
      new x509.KeyUsagesExtension(x509.KeyUsageFlags.keyCertSign | x509.KeyUsageFlags.cRLSign, true),
      await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
    ],
  });
  const pkcs8 = await webcrypto.subtle.exportKey('pkcs8', keys.privateKey);
  return `${privatePem(Buffer.from(pkcs8))}${certificate.toString('pem')}\n`;
}

/** Clocks of clients may be a day behind. */
function validity(days: number): { notBefore: Date; notAfter: Date } {
  const now_ms = Date.now();
  return { notBefore: new Date(now_ms - day_ms), notAfter: new Date(now_ms + days * day_ms) };
}

function privatePem(pkcs8: Buffer): string {
  return createPrivateKey({ key: pkcs8, format: 'der', type: 'pkcs8' })
    .export({ type: 'pkcs8', format: 'pem' })
    .toString();
}

/** A file that is there already is left as it is. */
function writeOnce(path: string, text: string): void {
  const temporary = `${path}.${randomBytes(6).toString('hex')}`;
  writeFileSync(temporary, text, { mode: 0o600, flush: true });
  try {
    linkSync(temporary, path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  } finally {
    unlinkSync(temporary);
  }
}

function readIfThere(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}
