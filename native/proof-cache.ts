import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { Ggml } from './ggml.ts';
import { packedProducts } from './packed-products.ts';
import { nativeCacheFile, nativeIdentity, writeNativeCache } from './probe.ts';

/** What came of a race of two kernels. */
export interface RaceVerdict {
  won: boolean;
  /** Share of the cores that others had meanwhile, 0 to 1: how little it is to be trusted. */
  others_share: number;
  /** How often it was raced. */
  races: number;
}

/**
 * What was found right of the kernels of a library on this CPU, so that it is not tried again, and which of two was
 * faster. One small file in the user's cache for each library, CPU and host; only what passed is in it.
 */
export class ProofCache {
  readonly path: string;
  readonly #passed: Set<string>;
  readonly #verdicts: Map<string, RaceVerdict>;
  #changed = false;

  constructor(path: string) {
    this.path = path;
    const { passed, verdicts } = readKept(path);
    this.#passed = new Set(passed);
    this.#verdicts = new Map(verdicts);
  }

  /** @param about what results depend on besides: of a device, its name and driver */
  static open(ggml: Ggml, about: readonly string[] = []): ProofCache {
    const { libraries, cpuFeatures } = ggml;
    const own = [nativeIdentity(libraries), packedProducts(ggml)?.identity, ...cpuFeatures];
    const facts = [...own, ...about].join('\n');
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

  verdict(key: string): RaceVerdict | undefined {
    return this.#verdicts.get(key);
  }

  /** Of two verdicts the one of the quieter machine is kept. @returns that one */
  addVerdict(key: string, found: Omit<RaceVerdict, 'races'>): RaceVerdict {
    const before = this.#verdicts.get(key);
    const kept = before && before.others_share < found.others_share ? before : found;
    const verdict = { ...kept, races: (before?.races ?? 0) + 1 };
    this.#verdicts.set(key, verdict);
    this.#changed = true;
    return verdict;
  }

  /** Where it cannot be written, the next process tries again. */
  write(): void {
    if (!this.#changed) return;
    this.#changed = false;
    // Another worker may have written meanwhile.
    const { passed, verdicts } = readKept(this.path);
    for (const key of passed) this.#passed.add(key);
    for (const [key, theirs] of verdicts) {
      const ours = this.#verdicts.get(key);
      if (!ours || theirs.others_share < ours.others_share) this.#verdicts.set(key, theirs);
    }
    writeNativeCache(this.path, {
      passed: [...this.#passed].sort(),
      verdicts: Object.fromEntries(this.#verdicts),
    });
  }
}

function readKept(path: string): { passed: string[]; verdicts: [string, RaceVerdict][] } {
  let kept: unknown;
  try {
    kept = JSON.parse(readFileSync(path, 'utf8'));
  } catch {
    // There is none, or one that was cut off: all is tried again, which costs milliseconds, and raced again.
  }
  // Files of earlier versions are a list of what passed.
  const { passed, verdicts } = (Array.isArray(kept) ? { passed: kept } : (kept ?? {})) as {
    passed?: unknown;
    verdicts?: unknown;
  };
  return {
    passed: Array.isArray(passed) ? passed.filter((key) => typeof key === 'string') : [],
    verdicts: Object.entries(verdicts ?? {}).filter((entry): entry is [string, RaceVerdict] =>
      isVerdict(entry[1]),
    ),
  };
}

function isVerdict(value: unknown): value is RaceVerdict {
  if (typeof value !== 'object' || value === null) return false;
  const { won, others_share, races } = value as Partial<RaceVerdict>;
  return typeof won === 'boolean' && typeof others_share === 'number' && typeof races === 'number';
}
