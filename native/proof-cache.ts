import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { Ggml } from './ggml.ts';
import { packedProducts } from './packed-products.ts';
import { nativeCacheFile, nativeIdentity, writeNativeCache } from './probe.ts';

/**
 * What was found right of the kernels of a library on this CPU, so that it is not tried again. One small file in the
 * user's cache for each library, CPU and host; only what passed is in it.
 */
export class ProofCache {
  readonly #path: string;
  readonly #passed: Set<string>;
  #changed = false;

  constructor(path: string) {
    this.#path = path;
    this.#passed = new Set(readPassed(path));
  }

  static open(ggml: Ggml): ProofCache {
    const { libraries, cpuFeatures } = ggml;
    const facts = [nativeIdentity(libraries), packedProducts(ggml)?.identity, ...cpuFeatures].join('\n');
    const key = createHash('sha256').update(facts).digest('hex').slice(0, 32);
    return new ProofCache(nativeCacheFile('kernels', key));
  }

  has(key: string): boolean {
    return this.#passed.has(key);
  }

  add(key: string): void {
    if (this.#passed.has(key)) return;
    this.#passed.add(key);
    this.#changed = true;
  }

  /** Where it cannot be written, the next process tries again. */
  write(): void {
    if (!this.#changed) return;
    this.#changed = false;
    // Another worker may have written meanwhile.
    for (const key of readPassed(this.#path)) this.#passed.add(key);
    writeNativeCache(this.#path, [...this.#passed].sort());
  }
}

function readPassed(path: string): string[] {
  try {
    const kept: unknown = JSON.parse(readFileSync(path, 'utf8'));
    return Array.isArray(kept) ? kept.filter((key) => typeof key === 'string') : [];
  } catch {
    // There is none, or one that was cut off: all is tried again, which costs milliseconds.
    return [];
  }
}
