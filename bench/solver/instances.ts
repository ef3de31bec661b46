/** Instances to run: files of a folder where there is one, else generated ones. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { AssignmentProblem } from '../../solver/assignment/problem.ts';
import { generateInstance } from './generate.ts';

export interface Instance {
  name: string;
  problem: AssignmentProblem;
}

interface InstanceFile {
  name: string;
  S: number;
  counts: number[];
  options: { n: number; a: number; s: number; cost: number }[][];
}

export function loadInstances(folder: string, log: (line: string) => void): Instance[] {
  if (!existsSync(folder)) {
    log(`no instances in ${folder}: generated ones instead`);
    return (['single', 'split'] as const).flatMap((mode) =>
      (['roofline', 'uniform'] as const).flatMap((kind) =>
        [8, 16, 32].map((models) => ({
          name: `${mode}-${kind}-M${models}`,
          problem: generateInstance({ models, types: 5, mode, kind, seed: 1 }),
        })),
      ),
    );
  }
  return readdirSync(folder)
    .filter((file) => file.endsWith('.json'))
    .sort()
    .map((file) => {
      const { name, S, counts, options } = JSON.parse(
        readFileSync(join(folder, file), 'utf8'),
      ) as InstanceFile;
      return {
        name,
        problem: {
          counts,
          shares: S,
          options: options.map((row) =>
            row.map(({ n, a, s, cost }) => ({ type: n, devices: a, share: s, cost })),
          ),
        },
      };
    });
}
