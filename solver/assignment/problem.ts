/**
 * The abstract problem behind placement: each model takes one or more options; an option occupies devices of
 * one type, carries a share of the model's traffic, and costs something; device types have capacities.
 */

/** Runs a share of one model's traffic on devices of one type. */
export interface AssignmentOption {
  /** Device type, an index into `counts`. */
  type: number;
  /** Devices it takes. */
  devices: number;
  /** Share of the model's traffic, in units of which the model's `shares` make the whole. */
  share: number;
  /** Non-negative whole number. */
  cost: number;
}

/**
 * Choose for every model options, at most one a device type, whose shares add up to `shares`, so that on
 * every type the chosen options take at most `counts` devices; minimise the sum of costs.
 */
export interface AssignmentProblem {
  /** Devices there are, by type. */
  counts: readonly number[];
  /** Units of traffic of every model, or of each. */
  shares: number | readonly number[];
  /** Options by model. */
  options: readonly (readonly AssignmentOption[])[];
}

/** Options chosen, by model, as indices into `options[model]`, ascending. */
export type AssignmentChoice = number[][];

/** Units of traffic of one model. */
export function trafficUnits({ shares }: AssignmentProblem, model: number): number {
  return typeof shares === 'number' ? shares : shares[model]!;
}

/** Sums of costs stay exact in doubles far below 2^53; the solver's tolerances assume this much. */
const cost_max = 2 ** 40;

/** @throws RangeError with the place of the first number that makes no sense */
export function requireValid(problem: AssignmentProblem): void {
  const whole = (value: number, least: number, where: string): void => {
    if (!Number.isSafeInteger(value) || value < least)
      throw new RangeError(`${where} is ${value}; a whole number of at least ${least} is needed`);
  };
  problem.counts.forEach((count, type) => {
    whole(count, 0, `counts[${type}]`);
  });
  if (typeof problem.shares === 'number') whole(problem.shares, 1, 'shares');
  else if (problem.shares.length !== problem.options.length)
    throw new RangeError(`shares of ${problem.shares.length} models, options of ${problem.options.length}`);
  else
    problem.shares.forEach((each, model) => {
      whole(each, 1, `shares[${model}]`);
    });
  problem.options.forEach((options, model) => {
    options.forEach((option, index) => {
      const where = `options[${model}][${index}]`;
      whole(option.type, 0, `${where}.type`);
      if (option.type >= problem.counts.length)
        throw new RangeError(`${where}.type is ${option.type}; there are ${problem.counts.length} types`);
      whole(option.devices, 0, `${where}.devices`);
      whole(option.share, 1, `${where}.share`);
      const all = trafficUnits(problem, model);
      if (option.share > all)
        throw new RangeError(`${where}.share is ${option.share}, more than the whole of ${all}`);
      whole(option.cost, 0, `${where}.cost`);
      if (option.cost > cost_max) throw new RangeError(`${where}.cost is ${option.cost}, above 2^40`);
    });
  });
}
