import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { GrowingProfile, type KeptProfile } from '../../solver/sharing/growing-profile.ts';
import { modelFingerprint, writeKeptFile } from './kept-file.ts';

const positive = z.number().positive();
const fileSchema = z.object({
  format: z.literal(1),
  /** For people. */
  model: z.string(),
  device: z.string(),
  samples: z.object({
    prefill: z.array(z.object({ tokens: positive, ms: positive })).min(1),
    decode: z.array(z.object({ batch: positive, tokens: positive, ms: positive })).min(1),
  }),
  measured: z.object({
    prefill: z.array(positive),
    decode: z.array(z.tuple([positive, positive])),
  }),
});

/**
 * Profiles of models on devices, kept between workers: one small file each in the worker's cache folder. What is there
 * is only ever a faster start: a file that is missing, broken or of another format means that the model is measured
 * again.
 */
export class ProfileStore {
  readonly #folder: string;
  readonly #device: string;
  readonly #files = new Map<string, string>();

  /** @param device everything of the device that iterations depend on, in words */
  constructor(cache_dir: string, device: string) {
    this.#folder = join(cache_dir, 'profiles');
    this.#device = device;
  }

  /**
   * @param options everything of the engine's options that iterations depend on, in words
   * @returns undefined where nothing usable is kept
   */
  read(model: { name: string; path: string }, options: string): KeptProfile | undefined {
    const hash = createHash('sha256');
    hash.update(modelFingerprint(model.path)).update(`\n${this.#device}\n${options}`);
    const file = join(this.#folder, `${hash.digest('hex').slice(0, 32)}.json`);
    this.#files.set(model.name, file);
    try {
      const { samples, measured } = fileSchema.parse(JSON.parse(readFileSync(file, 'utf8')));
      return new GrowingProfile({ samples, measured }).kept();
    } catch {
      return undefined; // as the head of this file says
    }
  }

  /** @throws where the folder cannot be written */
  write(name: string, { samples, measured }: KeptProfile): void {
    const file = this.#files.get(name);
    if (file === undefined) return;
    writeKeptFile(file, { format: 1, model: name, device: this.#device, samples, measured });
  }
}
