/** What hpcserve adds to Slurm on a real cluster: looking at many jobs, and from a submission to the first token. */
import { Stage } from '../preemption/stage.ts';
import type { Bench } from '../result.ts';
import { measureStart } from './start.ts';
import { measureStatus } from './status.ts';

export const slurmBench: Bench = {
  name: 'slurm',
  describe: 'on a real Slurm cluster: status of 500 jobs, and the time from sbatch to the first token',
  run: async ({ log }) => {
    const stage = await Stage.open({ name: 'slurm', site_lines: 'keeper:\n  place: none\n' });
    try {
      return [...(await measureStart(stage, log)), ...(await measureStatus(stage, log))];
    } finally {
      await stage.close();
    }
  },
};
