/** What every bench returns, and how a run of it is reported. */

export interface BenchResult {
  /** What was measured, in words a reader of the table understands. */
  what: string;
  unit: string;
  ours: number;
  /** Name of what ran beside it in the same run; empty where there is none. */
  peer: string;
  theirs: number | null;
  /** Ours against theirs, so that larger is better for us; null where there is no peer. */
  ratio: number | null;
  /** The figure asked for, as text: `ratio ≥ 0.97`, `≤ 1 ms`; empty where it is only stated. */
  bar: string;
  /** Whether the bar holds; null where there is none. */
  holds: boolean | null;
}

export interface BenchOptions {
  json: boolean;
  /** Progress for people, on stderr. */
  log: (line: string) => void;
  /** Arguments after the bench's name. */
  args: readonly string[];
}

export interface Bench {
  name: string;
  describe: string;
  run(options: BenchOptions): Promise<BenchResult[]>;
}

/** One run of a bench as `--json` prints it. */
export interface BenchReport {
  bench: string;
  commit: string;
  /** When it was begun, in ISO 8601. */
  date: string;
  machine: string;
  results: BenchResult[];
}
