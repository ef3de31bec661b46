/**
 * Which of several models on one device are resident, which reused and which streamed. Frequent ones earn their memory;
 * of the long tail, which is asked now and then, weights stay in host memory. A multiple-choice knapsack: each model
 * has one of its options, and together they fit.
 */
import type { Residency } from '../../spec/plan.ts';
import type { ResidencyCost } from './residency-cost.ts';

export interface ModelOptions {
  name: string;
  requests_per_s: number;
  /** Those that are possible. */
  options: readonly ResidencyCost[];
}

export interface ChosenResidency {
  name: string;
  residency: Residency;
  because: string;
}

/** Time that its requests take together, a second: what a choice lowers. */
export function busyShare({ requests_per_s }: ModelOptions, { request_s }: ResidencyCost): number {
  return requests_per_s * request_s;
}

/**
 * Every model begins with the option of least memory; then the change that saves most time for its bytes is made, as
 * long as one fits. A single change of another kind is looked for in the end, so that one large model is not kept out
 * by many small ones.
 * @returns undefined where not even the least memory of all fits
 */
export function chooseResidencies(
  models: readonly ModelOptions[],
  memory_bytes: number,
): ChosenResidency[] | undefined {
  const least = models.map(({ options }) =>
    options.reduce((best, next) => (next.device_bytes < best.device_bytes ? next : best)),
  );
  if (bytesOf(least) > memory_bytes) return undefined;
  const grown = improve(models, least, memory_bytes);
  const single = models.flatMap((model, index) =>
    model.options
      .map((option) => least.map((own, at) => (at === index ? option : own)))
      .filter((choice) => bytesOf(choice) <= memory_bytes)
      .map((choice) => improve(models, choice, memory_bytes)),
  );
  const best = [grown, ...single].reduce((a, b) => (shareOf(models, b) < shareOf(models, a) ? b : a));
  return models.map((model, index) => {
    const { residency } = best[index]!;
    return { name: model.name, residency, because: reasonFor(model, best[index]!) };
  });
}

function improve(
  models: readonly ModelOptions[],
  from: readonly ResidencyCost[],
  memory_bytes: number,
): ResidencyCost[] {
  const chosen = [...from];
  for (;;) {
    const left = memory_bytes - bytesOf(chosen);
    let best: { index: number; option: ResidencyCost; gain: number } | undefined;
    for (const [index, model] of models.entries())
      for (const option of model.options) {
        const saved = busyShare(model, chosen[index]!) - busyShare(model, option);
        const more_bytes = option.device_bytes - chosen[index]!.device_bytes;
        if (saved <= 0 || more_bytes > left) continue;
        const gain = more_bytes <= 0 ? Number.POSITIVE_INFINITY : saved / more_bytes;
        if (!best || gain > best.gain) best = { index, option, gain };
      }
    if (!best) return chosen;
    chosen[best.index] = best.option;
  }
}

function bytesOf(chosen: readonly ResidencyCost[]): number {
  return chosen.reduce((sum, { device_bytes }) => sum + device_bytes, 0);
}

function shareOf(models: readonly ModelOptions[], chosen: readonly ResidencyCost[]): number {
  return models.reduce((sum, model, index) => sum + busyShare(model, chosen[index]!), 0);
}

function reasonFor(model: ModelOptions, chosen: ResidencyCost): string {
  const fastest = model.options.reduce((best, next) => (next.request_s < best.request_s ? next : best));
  const took = (seconds: number): string =>
    seconds < 10 ? `${(1000 * seconds).toFixed(0)} ms` : `${seconds.toFixed(0)} s`;
  if (chosen === fastest) return `a request takes ${took(chosen.request_s)}, and nothing is faster`;
  const spared_gb = (fastest.device_bytes - chosen.device_bytes) / 1e9;
  return `a request takes ${took(chosen.request_s)}, ${fastest.residency} ${took(fastest.request_s)} and ${spared_gb.toFixed(1)} GB more, which serve other models better`;
}
