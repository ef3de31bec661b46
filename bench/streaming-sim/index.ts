/**
 * Weights that live in host memory, at the paper's size (C2CServe, arXiv:2605.19481): a GH200 cut into MIG slices,
 * simulated with the decisions of `solver/streaming`.
 */
import type { Bench } from '../result.ts';
import { attainmentResults } from './attainment.ts';
import { coldStartResults } from './cold-start.ts';
import { shapeResults } from './shapes.ts';
import { traceResults } from './traces.ts';

export const streamingSimulatedBench: Bench = {
  name: 'streaming-sim',
  describe:
    'models whose weights are streamed over the link of a GH200 to its MIG slices, simulated: requests in time with and without placement, chunk control and kernel choice; beside the paper',
  run: ({ log }) =>
    Promise.resolve([
      ...shapeResults(log),
      ...coldStartResults(),
      ...attainmentResults(log),
      ...traceResults(log),
    ]),
};
