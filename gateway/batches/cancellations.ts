import { z } from 'zod';
import type { SealedFolder } from '../kept/sealed-folder.ts';
import { now_s } from './batch.ts';

const markSchema = z.object({ cancelling_at: z.number() });

/**
 * Which batches of a key are to end before their time. Each has an entry of its own beside the batch, which whoever
 * works on the batch overwrites: it holds through a restart, and any gateway of the site may write it.
 */
export class Cancellations {
  readonly #folder: SealedFolder;
  readonly #key_id: string;

  constructor(folder: SealedFolder, key_id: string) {
    this.#folder = folder;
    this.#key_id = key_id;
  }

  /** @returns from when on, Unix s */
  async mark(batch_id: string): Promise<number> {
    const cancelling_at = (await this.markedAt(batch_id)) ?? now_s();
    const content = Buffer.from(JSON.stringify({ cancelling_at }));
    await this.#folder.put(this.#key_id, entryOf(batch_id), content);
    return cancelling_at;
  }

  /** Unix s; undefined: it goes on. */
  async markedAt(batch_id: string): Promise<number | undefined> {
    const bytes = await this.#folder.get(this.#key_id, entryOf(batch_id));
    return bytes && markSchema.parse(JSON.parse(bytes.toString())).cancelling_at;
  }

  async forget(batch_id: string): Promise<void> {
    await this.#folder.remove(this.#key_id, entryOf(batch_id));
  }
}

function entryOf(batch_id: string): string {
  return `cancel-${batch_id.replace(/^batch_/, '')}`;
}
