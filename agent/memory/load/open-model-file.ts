import { closeSync, fstatSync, openSync } from 'node:fs';
import { releaseLease, takeLease } from '../../../native/file-lease.ts';
import { mapFile, unmap } from '../../../native/memory-map.ts';
import type { Pointer } from '../../../native/signature.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { type FileVersion, fileVersion, versionChanges } from '../file-version.ts';

/** A model file that is open for a load: its descriptor, and its mapping where that is safe to read. */
export class OpenModelFile {
  readonly descriptor: number;
  /** Address of the whole file; undefined: it is read by pread alone. */
  readonly mapping: Pointer | undefined;
  readonly #file: FileVersion;
  readonly #leased: boolean;

  /**
   * @param mapped whether a mapping is of use
   * @throws HpcserveError E_POOL_LOAD
   */
  constructor(file: FileVersion, mapped: boolean) {
    this.#file = file;
    this.descriptor = openModel(file.path);
    this.#leased = mapped && takeLease(this.descriptor);
    try {
      this.check();
      if (this.#leased) this.mapping = mapFile(this.descriptor, 0, Number(file.size_bytes));
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /** @throws HpcserveError E_POOL_LOAD: it is no longer the version that was asked for */
  check(): void {
    const { path } = this.#file;
    const now = fileVersion(path, fstatSync(this.descriptor, { bigint: true }));
    const changed = versionChanges(this.#file, now);
    if (changed.length === 0) return;
    throw new HpcserveError('E_POOL_LOAD', {
      what: `${path} changed while its weights were read`,
      because: `${changed.join(', ')} ${changed.length === 1 ? 'is' : 'are'} not what it was when its header was read`,
      try: 'write models to a new name and rename them into place',
    });
  }

  /** Only once nobody reads from it. */
  close(): void {
    if (this.mapping !== undefined) unmap(this.mapping, Number(this.#file.size_bytes));
    if (this.#leased) releaseLease(this.descriptor);
    closeSync(this.descriptor);
  }
}

function openModel(path: string): number {
  try {
    return openSync(path, 'r');
  } catch (error) {
    throw new HpcserveError('E_POOL_LOAD', {
      what: `${path} cannot be opened`,
      because: (error as Error).message,
      cause: error,
    });
  }
}
