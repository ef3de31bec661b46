/**
 * SHA-256 of the tensors of a model file, kept so that each file is read for them once. An entry holds the version
 * of the file that was read; an entry of another version counts as none.
 */
import { createHash } from 'node:crypto';
import { closeSync, fstatSync, openSync, readFileSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { makeFolders } from '../../host/make-folders.ts';
import { compiledFile } from '../../host/programs.ts';
import { writeFileAtomically } from '../../host/whole-file.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { isSystemError } from '../../spec/errors/system-error.ts';
import { type FileVersion, fileVersion, sharedVersionText, versionChanges } from './file-version.ts';
import type { FileRange } from './load/pieces.ts';

/** Threads need compiled JavaScript: Node 20 runs no TypeScript. */
const threadFile = compiledFile('agent/memory/hash-thread.js');

/** By `rangeKey`: the hash in base64url. */
export type ContentHashes = ReadonlyMap<string, string>;

export function rangeKey({ offset_bytes, size_bytes }: FileRange): string {
  return `${offset_bytes}+${size_bytes}`;
}

export function rangeOfKey(key: string): FileRange {
  const [offset_bytes, size_bytes] = key.split('+').map(Number) as [number, number];
  return { offset_bytes, size_bytes };
}

const read_bytes = 4 * 1024 * 1024;

/**
 * Reads the ranges of a file and hashes each.
 * @throws HpcserveError E_POOL_LOAD: it cannot be read, or is no longer the version that was asked for
 */
export function hashContents(file: FileVersion, ranges: readonly FileRange[]): ContentHashes {
  const hashes = new Map<string, string>();
  const buffer = new Uint8Array(read_bytes);
  const descriptor = openSync(file.path, 'r');
  try {
    for (const range of ranges) {
      const hash = createHash('sha256');
      for (let done = 0; done < range.size_bytes; ) {
        const want = Math.min(read_bytes, range.size_bytes - done);
        const count = readSync(descriptor, buffer, 0, want, range.offset_bytes + done);
        if (count === 0) throw changed(file, ['size_bytes']);
        hash.update(buffer.subarray(0, count));
        done += count;
      }
      hashes.set(rangeKey(range), hash.digest('base64url'));
    }
    const changes = versionChanges(file, fileVersion(file.path, fstatSync(descriptor, { bigint: true })));
    if (changes.length > 0) throw changed(file, changes);
    return hashes;
  } finally {
    closeSync(descriptor);
  }
}

function changed({ path }: FileVersion, changes: readonly string[]): HpcserveError {
  return new HpcserveError('E_POOL_LOAD', {
    what: `${path} changed while its tensors were hashed`,
    because: `${changes.join(', ')} changed`,
  });
}

/**
 * One small file a model in a folder of its own, the same for all processes of a user: where caches and models lie on
 * filesystems that nodes share, a file that one node hashed is known to all.
 */
export class ContentHashCache {
  readonly folder: string;

  constructor(folder: string) {
    this.folder = folder;
  }

  /** @returns undefined where this version of the file has not been hashed, or what is kept of it cannot be read */
  read(file: FileVersion): ContentHashes | undefined {
    let text: string;
    try {
      text = readFileSync(this.#path(file), 'utf8');
    } catch (error) {
      if (!isSystemError(error)) throw error;
      return undefined;
    }
    const entry = parse(text);
    return entry && entry.version === sharedVersionText(file) ? new Map(entry.hashes) : undefined;
  }

  /**
   * Hashes a file in a thread of its own, unless its hashes are kept already.
   * @throws HpcserveError E_POOL_LOAD as `hashContents`
   */
  learn(file: FileVersion, ranges: readonly FileRange[]): Promise<void> {
    if (this.read(file)) return Promise.resolve();
    return new Promise((resolve, reject) => {
      const worker = new Worker(threadFile, { workerData: { file, ranges, folder: this.folder } });
      worker.once('error', (error) =>
        reject(
          new HpcserveError('E_POOL_LOAD', {
            what: `${file.path} was not hashed`,
            because: error.message,
            cause: error,
          }),
        ),
      );
      worker.once('exit', () => resolve());
    });
  }

  write(file: FileVersion, hashes: ContentHashes): void {
    makeFolders(this.folder);
    const entry: Entry = { version: sharedVersionText(file), hashes: [...hashes] };
    writeFileAtomically(this.#path(file), JSON.stringify(entry), { durability: 'content' });
  }

  #path({ path, inode }: FileVersion): string {
    const name = createHash('sha256').update(`${inode}:${path}`).digest('base64url');
    return join(this.folder, `${name}.json`);
  }
}

interface Entry {
  version: string;
  hashes: [string, string][];
}

/** A damaged entry is no entry: it is written again. */
function parse(text: string): Entry | undefined {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
  const entry = value as Partial<Entry> | null;
  const isPair = (pair: unknown): boolean =>
    Array.isArray(pair) && pair.length === 2 && pair.every((part) => typeof part === 'string');
  const isRange = ([key]: [string, string]): boolean => /^\d{1,15}\+\d{1,15}$/.test(key);
  const whole =
    typeof entry?.version === 'string' &&
    Array.isArray(entry.hashes) &&
    entry.hashes.every(isPair) &&
    entry.hashes.every(isRange);
  return whole ? (entry as Entry) : undefined;
}
