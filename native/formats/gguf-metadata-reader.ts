import { HpcserveError } from '../../spec/errors/error.ts';
import type { GgufFile } from './gguf-reader.ts';

/**
 * Typed access to the metadata of a GGUF file. What is absent and has no default, or has another type, is an
 * E_MODEL_METADATA that names file and key.
 */
export class GgufMetadataReader {
  readonly #file: GgufFile;

  constructor(file: GgufFile) {
    this.#file = file;
  }

  has(key: string): boolean {
    return this.#file.metadata.has(key);
  }

  /** Items of an array; 0 where there is none. */
  length(key: string): number {
    const entry = this.#file.metadata.get(key);
    return entry?.type === 'array' ? entry.length : 0;
  }

  text(key: string, absent?: string): string {
    const entry = this.#file.metadata.get(key);
    if (entry === undefined && absent !== undefined) return absent;
    if (entry?.type !== 'string') throw this.#wrong(key, 'a string');
    return String(entry.value);
  }

  /** A non-negative integer. */
  count(key: string, absent?: number, most = Number.MAX_SAFE_INTEGER): number {
    const entry = this.#file.metadata.get(key);
    if (entry === undefined && absent !== undefined) return absent;
    const value = entry === undefined || entry.type === 'array' ? undefined : entry.value;
    if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < 0 || value > most) {
      throw this.#wrong(
        key,
        most < Number.MAX_SAFE_INTEGER ? `a whole number up to ${most}` : 'a whole number',
      );
    }
    return value;
  }

  real(key: string, absent?: number): number {
    const entry = this.#file.metadata.get(key);
    if (entry === undefined && absent !== undefined) return absent;
    const value = entry === undefined || entry.type === 'array' ? undefined : entry.value;
    if (typeof value !== 'number' || !Number.isFinite(value)) throw this.#wrong(key, 'a number');
    return value;
  }

  /** One number for all layers, or an array of one a layer. */
  perLayer(key: string, layers: number, absent?: number): number[] {
    const entry = this.#file.metadata.get(key);
    if (entry?.type !== 'array') return new Array<number>(layers).fill(this.count(key, absent));
    if (entry.length !== layers || entry.values?.some((value) => typeof value !== 'number')) {
      throw this.#wrong(key, `a number, or an array of ${layers} numbers`);
    }
    return (entry.values ?? []).map(Number);
  }

  #wrong(key: string, expected: string): HpcserveError {
    return new HpcserveError('E_MODEL_METADATA', {
      what: `${this.#file.path} does not describe its model`,
      because: `the key "${key}" is ${this.has(key) ? 'not' : 'absent; it must be'} ${expected}`,
      details: { path: this.#file.path, key },
    });
  }
}
