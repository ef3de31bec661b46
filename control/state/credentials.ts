import { chmodSync, readFileSync, rmSync, statSync } from 'node:fs';
import { dirname } from 'node:path';
import { z } from 'zod';
import { makeFolders } from '../../host/make-folders.ts';
import { writeFileAtomically } from '../../host/whole-file.ts';
import { HpcserveError } from '../../spec/errors/error.ts';

const credentialSchema = z.object({
  /** Base URL, ending in /v1. */
  url: z.string(),
  site: z.string(),
  /** Which gateway of which state folder: ports change, the folder stays. */
  gateway_folder: z.string().optional(),
  key: z.string(),
  key_id: z.string().optional(),
  created_at_ms: z.number(),
});
export type GatewayCredential = z.infer<typeof credentialSchema>;
const fileSchema = z.object({ format: z.literal(1), gateways: z.array(credentialSchema) });

/** As long as a key is, and longer than its id. */
const secretLike = '0'.repeat(64);

/** API keys of this person, by gateway: `$XDG_CONFIG_HOME/hpcserve/credentials.json`, 0600. */
export class CredentialFile {
  readonly path: string;

  constructor(path: string) {
    this.path = path;
  }

  /** The key for a gateway: by its folder where known, else by its URL. */
  find(gateway: { url?: string; gateway_folder?: string }): GatewayCredential | undefined {
    const all = this.#read();
    return (
      (gateway.gateway_folder && all.find((each) => each.gateway_folder === gateway.gateway_folder)) ||
      all.find((each) => gateway.url !== undefined && sameUrl(each.url, gateway.url))
    );
  }

  save(credential: GatewayCredential): void {
    makeFolders(dirname(this.path));
    writeFileAtomically(this.path, this.#textWith(credential));
  }

  /**
   * Tries beside the file whether it could be written with one more key: nobody has a key that is made and cannot be
   * kept.
   * @throws the system's error
   */
  requireRoomFor(credential: Omit<GatewayCredential, 'key' | 'key_id'>): void {
    const { length } = this.#textWith({ ...credential, key: secretLike, key_id: secretLike });
    const beside = `${this.path}.try`;
    makeFolders(dirname(this.path));
    try {
      writeFileAtomically(beside, '0'.repeat(length));
    } finally {
      rmSync(beside, { force: true });
    }
  }

  #textWith(credential: GatewayCredential): string {
    const others = this.#read().filter(
      (each) =>
        !(credential.gateway_folder !== undefined && each.gateway_folder === credential.gateway_folder) &&
        !sameUrl(each.url, credential.url),
    );
    return `${JSON.stringify({ format: 1, gateways: [...others, credential] }, null, 2)}\n`;
  }

  #read(): GatewayCredential[] {
    let text: string;
    try {
      text = readFileSync(this.path, 'utf8');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
      throw error;
    }
    // Someone may have copied the file about: close it rather than refuse to work.
    if ((statSync(this.path).mode & 0o077) !== 0) chmodSync(this.path, 0o600);
    let json: unknown;
    try {
      json = JSON.parse(text);
    } catch (error) {
      throw this.#damaged((error as Error).message);
    }
    const parsed = fileSchema.safeParse(json);
    if (!parsed.success) throw this.#damaged(z.prettifyError(parsed.error));
    return parsed.data.gateways;
  }

  #damaged(because: string): HpcserveError {
    return new HpcserveError('E_CREDENTIALS', {
      what: `${this.path} cannot be read as a file of keys`,
      because,
      try: `move it away, and make a new key with \`hpcserve keys create\``,
    });
  }
}

function sameUrl(a: string, b: string): boolean {
  return a.replace(/\/+$/, '') === b.replace(/\/+$/, '');
}
