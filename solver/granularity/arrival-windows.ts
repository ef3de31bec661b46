/** How requests arrive, over several windows at once (FlexPipe Fig. 1: the same trace has another CV in each). */

export interface ArrivalWindow {
  window_ms: number;
  /** Gaps that ended in the window. */
  gaps: number;
  /** ν = σ / μ of the gaps; 0 where there are fewer than two. */
  cv: number;
  rate_per_s: number;
}

export interface ArrivalStatistics {
  /** The shortest window first. */
  windows: readonly ArrivalWindow[];
  /** Over the shortest window: what comes now. */
  rate_per_s: number;
  /** The most of a part of the reference window, per second. */
  rate_peak_per_s: number;
  /** Whether arrivals were watched for the whole reference window. */
  peak_seen: boolean;
  /**
   * Of the window whose CV is largest after its own uncertainty (`surely`): a burst that stands out shows in the
   * short ones first, and the long ones remember it.
   */
  cv: number;
  /** ∂λ/∂t over the gradient window, per second per second; 0 where it does not stand out from its own noise. */
  gradient_per_s2: number;
}

/** Parts of a window. More: windows slide more evenly, and take more memory. */
const parts_default = 12;

/** A part of the reference window: a peak shorter than this is seen as less than it was. */
const peak_part_ms = 5000;

/** Standard errors by which a slope has to differ from 0. Higher: fewer false alarms, later true ones. */
const gradient_errors = 3;

interface Part {
  /** Number of the part since the epoch; −1: nothing yet. */
  number: number;
  arrivals: number;
  gaps: number;
  gap_sum_ms: number;
  gap_squares: number;
}

/** Moments of the gaps of one window, in parts that are overwritten in turn. */
class SlidingMoments {
  readonly window_ms: number;
  readonly part_ms: number;
  /** One more than the window has, for the part that is being filled. */
  readonly #parts: Part[];

  constructor(window_ms: number, parts = parts_default) {
    this.window_ms = window_ms;
    this.part_ms = window_ms / parts;
    this.#parts = Array.from({ length: parts + 1 }, () => emptyPart(-1));
  }

  /** Number of the oldest part that belongs to the window. */
  #oldest(newest: number): number {
    return newest - this.#parts.length + 1;
  }

  observe(at_ms: number, gap_ms: number | undefined): void {
    const number = Math.floor(at_ms / this.part_ms);
    const at = number % this.#parts.length;
    if (this.#parts[at]!.number !== number) this.#parts[at] = emptyPart(number);
    const part = this.#parts[at]!;
    part.arrivals++;
    if (gap_ms === undefined) return;
    part.gaps++;
    part.gap_sum_ms += gap_ms;
    part.gap_squares += gap_ms * gap_ms;
  }

  read(now_ms: number, since_ms: number): ArrivalWindow {
    const newest = Math.floor(now_ms / this.part_ms);
    let [gaps, sum_ms, squares, arrivals] = [0, 0, 0, 0];
    for (const part of this.#parts) {
      if (part.number < 0 || part.number < this.#oldest(newest) || part.number > newest) continue;
      gaps += part.gaps;
      sum_ms += part.gap_sum_ms;
      squares += part.gap_squares;
      arrivals += part.arrivals;
    }
    const mean_ms = gaps > 0 ? sum_ms / gaps : 0;
    const variance = gaps > 1 ? Math.max(0, (squares - gaps * mean_ms ** 2) / (gaps - 1)) : 0;
    const begin_ms = Math.max(since_ms, this.#oldest(newest) * this.part_ms);
    const covered_s = Math.max(this.part_ms, now_ms - begin_ms) / 1000;
    return {
      window_ms: this.window_ms,
      gaps,
      cv: mean_ms > 0 ? Math.sqrt(variance) / mean_ms : 0,
      rate_per_s: arrivals / covered_s,
    };
  }

  /** Arrivals per second of the parts that are over, the oldest first. */
  rates(now_ms: number, since_ms: number): number[] {
    const newest = Math.floor(now_ms / this.part_ms);
    const oldest = Math.max(this.#oldest(newest), Math.ceil(since_ms / this.part_ms));
    const rates: number[] = [];
    for (let number = oldest; number < newest; number++) {
      const part = this.#parts[number % this.#parts.length]!;
      rates.push(((part.number === number ? part.arrivals : 0) * 1000) / this.part_ms);
    }
    return rates;
  }
}

export interface ArrivalWindowOptions {
  /** Windows of the CV; the shortest is that of the rate. */
  windows_ms?: readonly number[];
  /** Window of the gradient. */
  gradient_ms?: number;
  /** Window of the peak: what a pipeline was asked for lately, and has to carry again. As long as reclamation. */
  reference_ms?: number;
}

/** 5 s for what comes now, 15 s as in Fig. 9, 180 s and 3 h as in Fig. 1. */
const windows_default_ms: readonly number[] = [5000, 15_000, 180_000, 10_800_000];

/** Window of the peak where nobody says another one: what a model was asked for in it, it has to carry again. */
export const reference_default_ms = 300_000;

/** Of a model that nobody asked anything for as long as the window of the peak. */
export function quietArrivals(): ArrivalStatistics {
  return { ...new ArrivalWindows().read(0), peak_seen: true };
}

/** Arrivals of one model, in memory of fixed size. Times are the caller's, and do not go back. */
export class ArrivalWindows {
  readonly #windows: readonly SlidingMoments[];
  readonly #gradient: SlidingMoments;
  readonly #reference: SlidingMoments;
  #since_ms: number | undefined;
  #last_ms = 0;

  constructor(options: ArrivalWindowOptions = {}) {
    const windows_ms = [...(options.windows_ms ?? windows_default_ms)].sort((a, b) => a - b);
    this.#windows = windows_ms.map((window_ms) => new SlidingMoments(window_ms));
    this.#gradient = new SlidingMoments(options.gradient_ms ?? 15_000);
    const reference_ms = options.reference_ms ?? reference_default_ms;
    this.#reference = new SlidingMoments(reference_ms, Math.ceil(reference_ms / peak_part_ms));
  }

  observe(at_ms: number): void {
    const gap_ms = this.#since_ms === undefined ? undefined : at_ms - this.#last_ms;
    this.#since_ms ??= at_ms;
    this.#last_ms = at_ms;
    for (const window of [...this.#windows, this.#gradient, this.#reference]) window.observe(at_ms, gap_ms);
  }

  read(now_ms: number): ArrivalStatistics {
    const since_ms = this.#since_ms ?? now_ms;
    const windows = this.#windows.map((window) => window.read(now_ms, since_ms));
    const peaks = this.#reference.rates(now_ms, since_ms);
    return {
      windows,
      rate_per_s: windows[0]!.rate_per_s,
      rate_peak_per_s: Math.max(0, ...peaks),
      peak_seen: now_ms - since_ms >= this.#reference.window_ms,
      cv: windows.reduce((best, window) => (surely(window) > surely(best) ? window : best)).cv,
      gradient_per_s2: slope(this.#gradient.rates(now_ms, since_ms), this.#gradient.part_ms / 1000),
    };
  }
}

/**
 * A CV less its standard error. Gaps of a Gamma process have the kurtosis 3 + 6 CV², so that the error of their CV,
 * as a share of it, is √((2 + 6 CV²) / n) / 2.
 */
function surely({ gaps, cv }: ArrivalWindow): number {
  return gaps < 2 ? 0 : cv * (1 - Math.sqrt((2 + 6 * cv ** 2) / gaps) / 2);
}

function emptyPart(number: number): Part {
  return { number, arrivals: 0, gaps: 0, gap_sum_ms: 0, gap_squares: 0 };
}

/** Least squares over rates that are `step_s` apart; 0 within `gradient_errors` of its standard error. */
function slope(rates: readonly number[], step_s: number): number {
  const count = rates.length;
  if (count < 4) return 0;
  const mean = rates.reduce((sum, rate) => sum + rate, 0) / count;
  const middle = (count - 1) / 2;
  let [xy, xx] = [0, 0];
  for (const [index, rate] of rates.entries()) {
    xy += (index - middle) * (rate - mean);
    xx += (index - middle) ** 2;
  }
  const found = xy / xx;
  const squares = rates.reduce((sum, rate, index) => sum + (rate - mean - found * (index - middle)) ** 2, 0);
  const error = Math.sqrt(squares / (count - 2) / xx);
  return Math.abs(found) > gradient_errors * error ? found / step_s : 0;
}
