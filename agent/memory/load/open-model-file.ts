import { closeSync, fstatSync, openSync } from 'node:fs';
import { openDirect } from '../../../native/direct-file.ts';
import { releaseLease, takeLease } from '../../../native/file-lease.ts';
import { adviseRandom, mapFile, unmap } from '../../../native/memory-map.ts';
import type { Pointer } from '../../../native/signature.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { type FileVersion, fileVersion, versionChanges } from '../file-version.ts';
import type { DirectSource } from './load-work.ts';

/** How a load comes to the bytes of its file, beside pread. */
export interface FileAccess {
  /** What is in the page cache through a mapping, where a lease makes that safe. */
  mapped?: boolean;
  /** The rest past the page cache, where the filesystem allows it. */
  direct?: boolean;
  /** Of an earlier load; serves again where it is of the same version of the file. */
  kept?: FileMapping | undefined;
}

/**
 * A whole model file mapped for reading, for as long as anybody holds it. Whoever reads it holds a lease, too: see
 * `takeLease`. The file it was made of is the same as long as its version is: a mapping keeps the inode.
 */
export class FileMapping {
  readonly file: FileVersion;
  readonly address: Pointer;
  #holders = 1;

  private constructor(file: FileVersion, address: Pointer) {
    this.file = file;
    this.address = address;
  }

  /** @returns undefined where the filesystem or the limits of the process do not allow it */
  static make(descriptor: number, file: FileVersion): FileMapping | undefined {
    const address = mapFile(descriptor, 0, Number(file.size_bytes));
    return address === undefined ? undefined : new FileMapping(file, address);
  }

  hold(): this {
    this.#holders++;
    return this;
  }

  release(): void {
    if (--this.#holders === 0) unmap(this.address, Number(this.file.size_bytes));
  }
}

/** A model file that is open for a load: its descriptor, and its mapping where that is safe to read. */
export class OpenModelFile {
  readonly descriptor: number;
  /** Of the whole file, held until it is closed; undefined: it is read by pread alone. */
  readonly mapping: FileMapping | undefined;
  /** Bytes past the page cache; absent: they were not asked for, or the filesystem refused. */
  readonly direct: DirectSource | undefined;
  /** Why it did. */
  readonly direct_refused: string | undefined;
  readonly #file: FileVersion;
  readonly #leased: boolean;

  /** @throws HpcserveError E_POOL_LOAD */
  constructor(file: FileVersion, { mapped = false, direct: past_cache = false, kept }: FileAccess = {}) {
    this.#file = file;
    this.descriptor = openModel(file.path);
    this.#leased = mapped && takeLease(this.descriptor);
    try {
      this.check();
      const again = kept && versionChanges(kept.file, file).length === 0;
      if (this.#leased) this.mapping = again ? kept.hold() : FileMapping.make(this.descriptor, file);
      if (!past_cache) return;
      const direct = openDirect(this.descriptor);
      if (typeof direct === 'string') this.direct_refused = direct;
      else {
        this.direct = { descriptor: direct };
        // What is in the cache is taken from there, and the kernel is not to bring what follows it.
        if (this.mapping !== undefined) adviseRandom(this.mapping.address, Number(file.size_bytes));
      }
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
    this.mapping?.release();
    if (this.#leased) releaseLease(this.descriptor);
    if (this.direct) closeSync(this.direct.descriptor);
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
