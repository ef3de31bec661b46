import { z } from 'zod';
import type { Members } from '../dialects/chat-form.ts';
import type { KeptResponse } from '../dialects/dialect.ts';
import type { SealedFolder } from './sealed-folder.ts';
import { unknownKept } from './unknown-kept.ts';

const members = z.record(z.string(), z.unknown());
const keptSchema = z.object({ response: members, input: z.array(members), items: z.array(members) });

/** Answers of the responses API that are kept, of one key. */
export class ResponseStore {
  readonly #folder: SealedFolder;
  readonly #key_id: string;

  constructor(folder: SealedFolder, key_id: string) {
    this.#folder = folder;
    this.#key_id = key_id;
  }

  /** @throws the system's error */
  async keep(kept: KeptResponse): Promise<void> {
    await this.#folder.put(this.#key_id, String(kept.response.id), Buffer.from(JSON.stringify(kept)));
  }

  /** @throws E_KEPT_UNKNOWN */
  async find(id: string, param: string | null = null): Promise<KeptResponse> {
    const bytes = await this.#folder.get(this.#key_id, id);
    if (!bytes) throw unknownKept('response', id, param);
    return keptSchema.parse(JSON.parse(bytes.toString()));
  }

  /** @throws E_KEPT_UNKNOWN */
  async remove(id: string): Promise<void> {
    if (!(await this.#folder.remove(this.#key_id, id))) throw unknownKept('response', id, null);
  }
}

/** Items of the input of a kept answer, each with an id. */
export function inputItems({ response, input }: KeptResponse): Members[] {
  return input.map((item, at) => ({ ...item, id: item.id ?? `item_${String(response.id)}_${at}` }));
}
