import { statSync } from 'node:fs';
import { type ModelFile, openModelFile } from '../engine/model-file.ts';
import { fileVersion, versionText } from './file-version.ts';

/** Lower: less memory for vocabularies and names of tensors; higher: more models come back without reading a header. */
const kept_max = 32;

/** Headers of model files that were opened lately: a model that comes back need not be read for its header again. */
export class ModelFiles {
  readonly #kept = new Map<string, { version: string; file: ModelFile }>();

  /** @throws HpcserveError E_MODEL_*, E_ENGINE_MODEL */
  open(path: string): ModelFile {
    const stats = statSync(path, { bigint: true, throwIfNoEntry: false });
    // Without a version there is no file: opening it says so best.
    const version = stats ? versionText(fileVersion(path, stats)) : '';
    const known = this.#kept.get(path);
    this.#kept.delete(path);
    const kept = known?.version === version ? known : { version, file: openModelFile(path) };
    this.#kept.set(path, kept);
    if (this.#kept.size > kept_max) this.#kept.delete(this.#kept.keys().next().value!);
    return kept.file;
  }
}
