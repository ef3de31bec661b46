import { X509Certificate } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { createSecureContext, type SecureContextOptions } from 'node:tls';
import { every } from '../host/every.ts';
import { writeFileAtomicallyAsync } from '../host/whole-file.ts';
import { SiteAuthority } from '../mesh/index.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { type GatewayTls, gatewayFiles } from '../spec/state-layout.ts';
import type { GatewayLog } from './log.ts';

/** Between two looks whether the files of the certificate changed, ms. Lower: a new one is shown sooner. */
const look_ms = 5000;
/** A certificate of the site's own authority is replaced so long before it ends, ms. */
const renewal_ms = 30 * 86_400_000;

/** Shown to clients, and what changes with it. */
interface Material {
  cert: string;
  key: string;
  /** Changes when the certificate is to be read or made again. */
  version: string;
}

/** Who shows clients the certificate. */
export interface ShowsCertificate {
  setSecureContext(options: SecureContextOptions): void;
}

/**
 * The certificate that clients see: read, or issued by the site's own authority, and replaced while the gateway runs.
 */
export class ClientTls {
  readonly #tls: GatewayTls;
  readonly #gateway_folder: string;
  readonly #log: GatewayLog;
  readonly #names: readonly string[];
  readonly #authority: SiteAuthority | undefined;
  #material: Material;
  #stop: () => void = () => undefined;
  /** When the certificate ends that is shown. */
  #ends: { cert: string; at_ms: number } | undefined;
  #told = '';

  /** @throws HpcserveError E_GATEWAY_CONFIG where there is no certificate that could be shown */
  static async open(
    config: { tls: GatewayTls; host: string; gateway_folder: string },
    log: GatewayLog,
  ): Promise<ClientTls> {
    const { tls, host, gateway_folder } = config;
    const ownNames = ['localhost', '127.0.0.1', '::1', hostname()];
    const wildcard = host === '0.0.0.0' || host === '::';
    const names = 'names' in tls ? [...ownNames, ...(wildcard ? [] : [host]), ...tls.names] : [];
    const authority = 'authority_folder' in tls ? await SiteAuthority.open(tls.authority_folder) : undefined;
    const material = authority ? await issue(authority, names) : readFiles(tls);
    const opened = new ClientTls(tls, gateway_folder, log, names, authority, material);
    await opened.#show(material.cert);
    return opened;
  }

  private constructor(
    tls: GatewayTls,
    gateway_folder: string,
    log: GatewayLog,
    names: readonly string[],
    authority: SiteAuthority | undefined,
    material: Material,
  ) {
    this.#tls = tls;
    this.#gateway_folder = gateway_folder;
    this.#log = log;
    this.#names = names;
    this.#authority = authority;
    this.#material = material;
  }

  get options(): SecureContextOptions {
    const { cert, key } = this.#material;
    return { cert, key, minVersion: 'TLSv1.2' };
  }

  /** A copy of what is shown now, for clients that compare it. */
  get certificate_file(): string {
    return join(this.#gateway_folder, gatewayFiles.certificate);
  }

  get ca_file(): string | undefined {
    return this.#authority?.ca_file ?? ('ca_file' in this.#tls ? this.#tls.ca_file : undefined);
  }

  /** From now on a changed certificate is shown to whoever connects. */
  watch(shown: ShowsCertificate): void {
    this.#stop = every(look_ms, () => void this.#look(shown));
  }

  close(): void {
    this.#stop();
  }

  async #look(shown: ShowsCertificate): Promise<void> {
    try {
      const next = this.#authority
        ? await this.#renewed(this.#authority)
        : readFiles(this.#tls, this.#material.version);
      this.#told = '';
      if (!next) return;
      // Commands that connect meanwhile may meet either.
      await this.#show(next.cert, this.#material.cert);
      this.#material = next;
      shown.setSecureContext(this.options);
      await this.#show(next.cert);
      this.#log.info({}, 'clients are shown a new certificate');
    } catch (error) {
      const because = HpcserveError.from(error).toText();
      if (because !== this.#told)
        this.#log.warn({ because }, 'the new certificate for clients cannot be used; the old one stays');
      this.#told = because;
    }
  }

  async #renewed(authority: SiteAuthority): Promise<Material | undefined> {
    if (this.#ends?.cert !== this.#material.cert) {
      const { cert } = this.#material;
      this.#ends = { cert, at_ms: Date.parse(new X509Certificate(cert).validTo) };
    }
    return this.#ends.at_ms - Date.now() > renewal_ms ? undefined : await issue(authority, this.#names);
  }

  /** Without the authorities that may stand behind each of them. */
  #show(...certificates: string[]): Promise<void> {
    const own = certificates.map((pem) => new X509Certificate(pem).toString());
    return writeFileAtomicallyAsync(this.certificate_file, own.join(''));
  }
}

async function issue(authority: SiteAuthority, names: readonly string[]): Promise<Material> {
  const { certificate, key } = await authority.issue(names);
  return { cert: certificate, key, version: '' };
}

function readFiles(tls: GatewayTls): Material;
function readFiles(tls: GatewayTls, known: string): Material | undefined;
/** @returns undefined where the files are still of the version that is known */
function readFiles(tls: GatewayTls, known?: string): Material | undefined {
  if (!('certificate_file' in tls)) throw new TypeError('there are no files of an authority of our own');
  const { certificate_file, key_file } = tls;
  try {
    const version = [certificate_file, key_file].map(versionOf).join(' ');
    if (version === known) return undefined;
    const cert = readFileSync(certificate_file, 'utf8');
    const key = readFileSync(key_file, 'utf8');
    // Throws where they do not fit each other: one of them may be about to be replaced.
    createSecureContext({ cert, key });
    return { cert, key, version };
  } catch (error) {
    throw new HpcserveError('E_GATEWAY_CONFIG', {
      what: 'the TLS certificate or key for clients cannot be used',
      because: `${certificate_file}, ${key_file}: ${(error as Error).message}`,
      cause: error,
    });
  }
}

function versionOf(path: string): string {
  const { ino, size, mtimeMs } = statSync(path);
  return `${ino} ${size} ${mtimeMs}`;
}
