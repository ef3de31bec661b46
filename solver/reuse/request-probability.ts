/**
 * How likely each model is to be asked for next, from the requests so far. The estimate is that of LRFU (Lee et
 * al., IEEE ToC 2001): every past request counts, and counts half as much after a number of further requests.
 * Time does not enter, only order: a quiet hour makes no model less likely than another.
 */
export interface RequestHistory {
  /** Requests noted so far, of all models. */
  requests: number;
  /** Per model: its weight, and at which request it was brought up to date. */
  weights: ReadonlyMap<string, { weight: number; at: number }>;
}

/**
 * Requests after which a past one counts half. Lower: recency alone decides (LRU); higher: frequency alone (LFU).
 */
export const request_half_life = 8;

export const noRequests: RequestHistory = { requests: 0, weights: new Map() };

export function noteRequest(history: RequestHistory, model: string): RequestHistory {
  const requests = history.requests + 1;
  const weights = new Map(history.weights);
  weights.set(model, { weight: weightOf(history, model, requests) + 1, at: requests });
  return { requests, weights };
}

/** Probability that the next request is for the model: its share of all weights; 0 for one that was never asked for. */
export function requestProbability(history: RequestHistory, model: string): number {
  let sum = 0;
  for (const name of history.weights.keys()) sum += weightOf(history, name, history.requests);
  return sum === 0 ? 0 : weightOf(history, model, history.requests) / sum;
}

function weightOf(history: RequestHistory, model: string, now: number): number {
  const known = history.weights.get(model);
  return known ? known.weight * 2 ** ((known.at - now) / request_half_life) : 0;
}
