import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { type KeptLengths, OutputLengths } from '../../solver/sharing/output-lengths.ts';
import { modelFingerprint, writeKeptFile } from './kept-file.ts';

const historySchema = z.object({ weights: z.array(z.number()), tokens: z.array(z.number()) });
const fileSchema = z.object({
  format: z.literal(1),
  /** For people. */
  model: z.string(),
  answers: historySchema.optional(),
  reasoning: historySchema.optional(),
});

/**
 * How long the answers of models became, kept between workers beside their profiles: one small file a model, whatever
 * the device. Where several workers serve a model, the history of the one that wrote last is what the next one begins
 * with. A file that is missing, broken or of another format means that history begins anew.
 */
export class OutputLengthStore {
  readonly #folder: string;
  readonly #files = new Map<string, string>();

  constructor(cache_dir: string) {
    this.#folder = join(cache_dir, 'profiles');
  }

  /** @returns undefined where nothing usable is kept */
  read({ name, path }: { name: string; path: string }): KeptLengths | undefined {
    const hash = createHash('sha256').update(modelFingerprint(path)).update(`\n${name}`).digest('hex');
    const file = join(this.#folder, `${hash.slice(0, 32)}.lengths.json`);
    this.#files.set(name, file);
    try {
      const { answers, reasoning } = fileSchema.parse(JSON.parse(readFileSync(file, 'utf8')));
      const kept = { ...(answers && { answers }), ...(reasoning && { reasoning }) };
      new OutputLengths().restore(name, kept);
      return kept;
    } catch {
      return undefined; // as the head of this file says
    }
  }

  /** @throws where the folder cannot be written */
  write(name: string, kept: KeptLengths): void {
    const file = this.#files.get(name);
    if (file !== undefined) writeKeptFile(file, { format: 1, model: name, ...kept });
  }
}
