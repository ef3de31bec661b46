/** A process of its own that solves the largest generated instances and prints its peak resident memory, MB. */
import { solveAssignment } from '../../solver/assignment/solve.ts';
import { generateInstance } from './generate.ts';

for (const mode of ['single', 'split'] as const)
  for (const kind of ['roofline', 'uniform'] as const) {
    const start = performance.now();
    solveAssignment(generateInstance({ models: 64, types: 8, mode, kind, seed: 1 }), {
      shouldStop: () => performance.now() - start > 5000,
    });
  }
process.stdout.write(`${process.resourceUsage().maxRSS / 1024}\n`);
