import type { ContentHashes } from './content-hashes.ts';
import { rangeKey } from './content-hashes.ts';
import type { FileRange } from './load/pieces.ts';
import type { WantedTensor } from './pending-load.ts';

/** A tensor of a model in the pool. */
export interface PooledPart {
  wanted: WantedTensor;
  /** Ranges of the file that follow one another in it. */
  parts: readonly FileRange[];
  /** It lies there as in its file. */
  as_in_file: boolean;
}

/** Bytes of a file that lie as such in a tensor of the pool. */
interface ContentPlace {
  wanted: WantedTensor;
  /** From the beginning of the tensor. */
  begin_bytes: number;
  size_bytes: number;
}

/** Which tensor of a pool has the bytes that a SHA-256 names, whether it lies there now or not. */
export class PooledContents {
  readonly #places: ReadonlyMap<string, ContentPlace>;

  constructor(models: Iterable<{ tensors: readonly PooledPart[]; contents: ContentHashes | undefined }>) {
    const places = new Map<string, ContentPlace>();
    for (const { tensors, contents } of models)
      for (const { wanted, parts, as_in_file } of contents ? tensors : []) {
        let begin_bytes = 0;
        for (const part of parts) {
          const content = contents!.get(rangeKey(part));
          const { size_bytes } = part;
          if (as_in_file && content !== undefined) places.set(content, { wanted, begin_bytes, size_bytes });
          begin_bytes += size_bytes;
        }
      }
    this.#places = places;
  }

  find(content: string): ContentPlace | undefined {
    return this.#places.get(content);
  }
}
