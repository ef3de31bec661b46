import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { writeKeptFile } from '../device-worker/kept-file.ts';
import type { UnitGroup } from './assign-devices.ts';

const fileSchema = z.object({
  format: z.literal(1),
  /** For people. */
  model: z.string(),
  engine: z.string(),
  load_s: z.number().positive(),
});

/**
 * How long an engine took the last time from its start until it served, for this model on devices like these: one small
 * file each in the cache of the user, beside the profiles of device workers. A file that is missing, broken or of
 * another format means that nothing is known.
 */
export class LoadTimes {
  readonly #file: string;
  readonly #group: UnitGroup;

  constructor(cache_dir: string, group: UnitGroup) {
    this.#group = group;
    const [unit] = group.units;
    const devices = group.devices.map(({ description }) => description.model);
    const key = [group.engine, unit!.model_path, unit!.tensor, unit!.pipeline, unit!.nodes ?? 1, devices];
    const hash = createHash('sha256').update(JSON.stringify(key)).digest('hex');
    this.#file = join(cache_dir, 'load-times', `${hash.slice(0, 32)}.json`);
  }

  /** @returns undefined where nothing usable is kept */
  read_s(): number | undefined {
    try {
      return fileSchema.parse(JSON.parse(readFileSync(this.#file, 'utf8'))).load_s;
    } catch {
      return undefined; // as the head of this class says
    }
  }

  /** @throws where the folder cannot be written */
  write(load_s: number): void {
    const { engine, units } = this.#group;
    writeKeptFile(this.#file, { format: 1, model: units[0]!.model.name, engine, load_s });
  }
}
