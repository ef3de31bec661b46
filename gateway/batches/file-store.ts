import { z } from 'zod';
import type { KeptEntry, Pieces, SealedFolder } from '../kept/sealed-folder.ts';
import { newId } from '../kept/sealed-folder.ts';
import { unknownKept } from '../kept/unknown-kept.ts';

/** A file as OpenAI's API shows it. */
const fileSchema = z.object({
  id: z.string(),
  object: z.literal('file'),
  bytes: z.number(),
  /** Unix s. */
  created_at: z.number(),
  filename: z.string(),
  purpose: z.string(),
  status: z.literal('processed'),
});
export type KeptFile = z.infer<typeof fileSchema>;

const filePrefix = 'file-';
/** What is said of a file stands beside it, under its number. */
const infoPrefix = 'info-';

/** Files of one key. */
export class FileStore {
  readonly #folder: SealedFolder;
  readonly #key_id: string;

  constructor(folder: SealedFolder, key_id: string) {
    this.#folder = folder;
    this.#key_id = key_id;
  }

  /** @throws the system's error, or that of the pieces */
  async put(filename: string, purpose: string, content: Pieces): Promise<KeptFile> {
    const id = newId(filePrefix);
    let bytes = 0;
    const counted = async function* (): AsyncGenerator<Buffer> {
      for await (const piece of content) {
        bytes += piece.length;
        yield piece;
      }
    };
    await this.#folder.putPieces(this.#key_id, id, counted());
    const file: KeptFile = {
      id,
      object: 'file',
      bytes,
      created_at: Math.floor(Date.now() / 1000),
      filename,
      purpose,
      status: 'processed',
    };
    await this.#folder.put(this.#key_id, infoIdOf(file.id), Buffer.from(JSON.stringify(file)));
    return file;
  }

  /** The newest first. */
  async list(): Promise<KeptFile[]> {
    const entries = await this.#folder.list(this.#key_id);
    const infos = entries.filter(({ id }: KeptEntry) => id.startsWith(infoPrefix)).reverse();
    const files = await Promise.all(infos.map(({ id }) => this.#info(id)));
    return files.filter((file) => file !== undefined);
  }

  /** @throws E_KEPT_UNKNOWN */
  async find(id: string): Promise<KeptFile> {
    const file = id.startsWith(filePrefix) ? await this.#info(infoIdOf(id)) : undefined;
    if (!file) throw unknownKept('file', id, null);
    return file;
  }

  /** @throws E_KEPT_UNKNOWN */
  async content(id: string, param: string | null = null): Promise<Buffer> {
    const content = id.startsWith(filePrefix) ? await this.#folder.get(this.#key_id, id) : undefined;
    if (!content) throw unknownKept('file', id, param);
    return content;
  }

  /** The same of any length. @throws E_KEPT_UNKNOWN */
  async pieces(id: string): Promise<AsyncIterable<Buffer>> {
    const pieces = id.startsWith(filePrefix) ? await this.#folder.pieces(this.#key_id, id) : undefined;
    if (!pieces) throw unknownKept('file', id, null);
    return pieces;
  }

  /** Lets the time of a file begin anew. @throws the system's error */
  async renew(id: string): Promise<void> {
    const ids = [id, infoIdOf(id)];
    await this.#folder.renew(this.#key_id, (one) => ids.includes(one));
  }

  /** @throws E_KEPT_UNKNOWN */
  async remove(id: string): Promise<void> {
    await this.find(id);
    await this.#folder.remove(this.#key_id, id);
    await this.#folder.remove(this.#key_id, infoIdOf(id));
  }

  async #info(id: string): Promise<KeptFile | undefined> {
    const bytes = await this.#folder.get(this.#key_id, id);
    return bytes && fileSchema.parse(JSON.parse(bytes.toString()));
  }
}

function infoIdOf(id: string): string {
  return infoPrefix + id.slice(filePrefix.length);
}
