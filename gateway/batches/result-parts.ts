import { z } from 'zod';
import { systemMessage } from '../../spec/errors/system-error.ts';
import type { SealedFolder } from '../kept/sealed-folder.ts';
import type { GatewayLog } from '../log.ts';

const resultSchema = z.object({ at: z.number(), ok: z.boolean(), line: z.string() });
/** What came of one request: its place in the batch, and its line of the output. */
export type BatchResult = z.infer<typeof resultSchema>;

export interface ResultPartsOptions {
  key_id: string;
  batch_id: string;
  folder: SealedFolder;
  log: GatewayLog;
}

/** Results of a batch that runs, kept in numbered parts: a run that goes on later reads them up to the first gap. */
export class ResultParts {
  readonly #options: ResultPartsOptions;
  #unsaved: BatchResult[] = [];
  #parts = 0;
  /** Never rejects, so that a part that cannot be written does not stand in the way of the next. */
  #saving: Promise<boolean> = Promise.resolve(true);
  #isFailing = false;

  constructor(options: ResultPartsOptions) {
    this.#options = options;
  }

  get unsaved(): number {
    return this.#unsaved.length;
  }

  add(result: BatchResult): void {
    this.#unsaved.push(result);
  }

  /** @returns whether all that was added before is kept now; what is not waits for the next call */
  save(): Promise<boolean> {
    this.#saving = this.#saving.then(() => this.#write());
    return this.#saving;
  }

  /** What an earlier run has kept. @throws the system's error */
  async *load(): AsyncGenerator<BatchResult> {
    const { folder, key_id } = this.#options;
    for (; ; this.#parts++) {
      const bytes = await folder.get(key_id, this.#idOf(this.#parts));
      if (!bytes) return;
      yield* z.array(resultSchema).parse(JSON.parse(bytes.toString()));
    }
  }

  /** @throws the system's error */
  async remove(): Promise<void> {
    const { folder, key_id } = this.#options;
    for (let part = 0; part < this.#parts; part++) await folder.remove(key_id, this.#idOf(part));
  }

  async #write(): Promise<boolean> {
    const part = this.#unsaved;
    if (part.length === 0) return true;
    this.#unsaved = [];
    const { folder, key_id, batch_id: batch, log } = this.#options;
    try {
      await folder.put(key_id, this.#idOf(this.#parts), Buffer.from(JSON.stringify(part)));
    } catch (error) {
      // The number is not used up: a gap would hide all parts behind it.
      this.#unsaved = [...part, ...this.#unsaved];
      if (!this.#isFailing)
        log.error({ batch, reason: systemMessage(error as Error) }, 'results of a batch cannot be kept');
      this.#isFailing = true;
      return false;
    }
    this.#parts++;
    if (this.#isFailing) log.info({ batch }, 'results of a batch are kept again');
    this.#isFailing = false;
    return true;
  }

  #idOf(part: number): string {
    return `part-${this.#options.batch_id.replace(/^batch_/, '')}x${part}`;
  }
}
