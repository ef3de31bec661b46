/**
 * What a cell has to reach: the least of the paper's gains, or where even the best policy gives less, most of what that
 * one gives.
 */

/** Of the paper's figures the smallest gains (Tangram, Figures 8 and 10). */
export const load_ratio_min = 1.8;
export const ttft_lower_min = 14;
/** Of what Belady's optimum spares, who does not know the future is to spare so much. */
const spared_share_min = 0.7;

export interface CellFacts {
  /** Of all requests, had each loaded its whole model. */
  whole_bytes: number;
  /** What Belady's optimum loads, the first load of each model included. */
  belady_bytes: number;
  /** Of the time to a first token without reuse, what the load takes. */
  load_share: number;
}

interface Bar {
  least: number;
  words: string;
}

export interface CellBars {
  /** Times without reuse over ours. */
  load_ratio: Bar;
  ttft_ratio: Bar;
  /** Belady's bytes over ours. */
  bytes_ratio: Bar;
}

export function barsOf({ whole_bytes, belady_bytes, load_share }: CellFacts): CellBars {
  /** Share of the bytes that anybody can spare, who does not load them again. */
  const spared_most = 1 - belady_bytes / whole_bytes;
  const spared = spared_share_min * spared_most;
  return {
    load_ratio: ratioBar(1 / (1 - spared), load_ratio_min, 1 / (1 - spared_most)),
    ttft_ratio: ratioBar(
      1 / (1 - load_share * spared),
      1 / (1 - ttft_lower_min / 100),
      1 / (1 - load_share * spared_most),
    ),
    bytes_ratio: {
      least: belady_bytes / (whole_bytes * (1 - spared)),
      words: `spares ≥ ${100 * spared_share_min} % of what Belady spares: ratio ≥ ${two(belady_bytes / (whole_bytes * (1 - spared)))}`,
    },
  };
}

/** @param within_reach most of what Belady gives @param of_paper the least that the paper has @param belady his own */
function ratioBar(within_reach: number, of_paper: number, belady: number): Bar {
  if (within_reach >= of_paper) return { least: of_paper, words: `ratio ≥ ${two(of_paper)}` };
  const share = `${100 * spared_share_min} %`;
  const words = `ratio ≥ ${two(within_reach)}: ${share} of what Belady spares, who gives ${two(belady)} (the paper's ${two(of_paper)} is of all pools)`;
  return { least: within_reach, words };
}

function two(value: number): string {
  return value.toFixed(2);
}
