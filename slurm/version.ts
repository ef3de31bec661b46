/** The Slurm version a site runs: releases are named by year and month, 20.11 to 25.x. */
import { HpcserveError } from '../spec/errors/error.ts';

export interface SlurmVersion {
  year: number;
  month: number;
  patch: number;
  /** As Slurm prints it: `22.05.8`. */
  text: string;
}

/** The oldest release whose output formats this client knows. */
export const oldestSlurm = { year: 20, month: 11 } as const;

/**
 * The version in the output of `sinfo --version`: `slurm 23.02.6`, `slurm-wlm 22.05.8`, `slurm 24.05.0-rc1`.
 * @throws E_SLURM_ANSWER when there is none.
 */
export function parseSlurmVersion(output: string): SlurmVersion {
  const match = /\bslurm(?:-\w+)?\s+((\d+)\.(\d+)(?:\.(\d+))?\S*)/i.exec(output);
  if (match === null)
    throw new HpcserveError('E_SLURM_ANSWER', {
      what: 'the version of Slurm could not be read',
      because: `sinfo --version printed ${JSON.stringify(output.trim().slice(0, 200))}`,
    });
  const [, text = '', year, month, patch] = match;
  return { text, year: Number(year), month: Number(month), patch: Number(patch ?? 0) };
}

/** Whether `version` is the release `year.month` or a later one. */
export function atLeast(version: SlurmVersion, year: number, month: number): boolean {
  return version.year > year || (version.year === year && version.month >= month);
}
