/**
 * Requests for models by locality, after Tangram §5.1: every model's requests arrive by a Gamma process of its own,
 * whose coefficient of variation says how much they come in bursts; runs of requests for one model are cut where the
 * level says.
 */
import { seededRandom } from '../../solver/simulator/random.ts';

export const localities = ['L1', 'L2', 'L3', 'L4'] as const;
export type Locality = (typeof localities)[number];

const levels: Record<Locality, { cv: number; run: (length: number) => number }> = {
  L1: { cv: 0.25, run: () => 1 },
  L2: { cv: 0.5, run: (length) => Math.ceil(length / 2) },
  L3: { cv: 1, run: (length) => length },
  L4: { cv: 2, run: (length) => length },
};
/** Of a model's arrivals over the next one's: how much more popular it is. */
const popularity_exponent = 0.9;
/** Requests of a session follow one another: mean length of such a run in the trace that is thinned out. */
const session_requests = 3;

/** @returns indices of models, in the order of arrival */
export function trace(locality: Locality, models: number, requests: number, seed: number): number[] {
  const random = seededRandom(seed);
  const { cv, run } = levels[locality];
  const arrivals: { at: number; model: number }[] = [];
  for (let model = 0; model < models; model++) {
    // The middle sizes are asked for most; which model is popular does not follow its size.
    const rank = (model * 3) % models;
    const mean = (rank + 1) ** popularity_exponent;
    let at = mean * random();
    while (at < requests) {
      arrivals.push({ at, model });
      at += gamma(1 / cv ** 2, mean * cv ** 2, random);
    }
  }
  arrivals.sort((a, b) => a.at - b.at);
  const sessions: number[] = [];
  for (const { model } of arrivals) {
    const length = 1 + Math.floor(-Math.log(1 - random()) * (session_requests - 1));
    for (let count = run(length); count > 0; count--) sessions.push(model);
  }
  const ordered =
    locality === 'L1' ? sessions.filter((model, index) => model !== sessions[index - 1]) : sessions;
  return ordered.slice(0, requests);
}

/** Marsaglia and Tsang's method, boosted for shapes below 1. */
function gamma(shape: number, scale: number, random: () => number): number {
  if (shape < 1) return gamma(shape + 1, scale, random) * random() ** (1 / shape);
  const d = shape - 1 / 3;
  const c = 1 / Math.sqrt(9 * d);
  for (;;) {
    const x = Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
    const v = (1 + c * x) ** 3;
    if (v > 0 && Math.log(1 - random()) < (x * x) / 2 + d - d * v + d * Math.log(v)) return d * v * scale;
  }
}
