/** Instances to run: files of a folder, or some by seed where those were asked for. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { AssignmentProblem } from '../../solver/assignment/problem.ts';
import { MissingNeed } from '../need.ts';
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

/** By seed, in the place of those whose optima others have proved. */
export function generatedInstances(): Instance[] {
  return (['single', 'split'] as const).flatMap((mode) =>
    (['roofline', 'uniform'] as const).flatMap((kind) =>
      [8, 16, 32].map((models) => ({
        name: `${mode}-${kind}-M${models}`,
        problem: generateInstance({ models, types: 5, mode, kind, seed: 1 }),
      })),
    ),
  );
}

/** @throws MissingNeed where the folder has none */
export function loadInstances(folder: string): Instance[] {
  const files = existsSync(folder) ? readdirSync(folder).filter((file) => file.endsWith('.json')) : [];
  if (files.length === 0)
    throw new MissingNeed(
      `there are no placement instances in ${folder}`,
      'name a folder of them with --folder DIR or HPCSERVE_INSTANCES, or run on some by seed with --generated',
    );
  return files.sort().map((file) => {
    const { name, S, counts, options } = JSON.parse(readFileSync(join(folder, file), 'utf8')) as InstanceFile;
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
