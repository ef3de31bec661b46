/** What a download says while it runs; one stream of events, shown by the caller. */
export type PullEvent =
  | { kind: 'listing'; repository: string; revision: string }
  | { kind: 'planned'; files: number; bytes_total: number; bytes_present: number }
  | {
      kind: 'progress';
      file: string;
      bytes_done: number;
      bytes_total: number | undefined;
      bytes_per_s: number;
    }
  | { kind: 'note'; file: string; message: string }
  | {
      kind: 'file_done';
      file: string;
      path: string;
      bytes: number;
      verified: 'sha256' | 'git-sha1' | 'size' | 'none';
    };

export type PullListener = (event: PullEvent) => void;

/** Bytes per second over a sliding window, so that the figure follows the line and not the average. */
export class RateMeter {
  /** Longer: steadier; shorter: quicker to show a change. */
  static readonly window_ms = 5_000;
  readonly #now: () => number;
  #samples: { at_ms: number; bytes: number }[] = [];

  constructor(now: () => number = () => performance.now()) {
    this.#now = now;
  }

  add(bytes: number): void {
    const at_ms = this.#now();
    const last = this.#samples.at(-1);
    // Samples of a tenth of a second: the list stays short whatever the size of the pieces.
    if (last && at_ms - last.at_ms < 100) last.bytes += bytes;
    else this.#samples.push({ at_ms, bytes });
    this.#samples = this.#samples.filter((sample) => at_ms - sample.at_ms <= RateMeter.window_ms);
  }

  get bytes_per_s(): number {
    const first = this.#samples[0];
    if (!first) return 0;
    const bytes = this.#samples.reduce((sum, sample) => sum + sample.bytes, 0);
    return bytes / Math.max(0.1, (this.#now() - first.at_ms) / 1000);
  }
}
