/** Jobs of others, one after the other, which take the nodes that replicas are on. */
import { setTimeout as sleep } from 'node:timers/promises';
import { seededRandom } from '../../solver/simulator/random.ts';
import type { Stage } from './stage.ts';

/** Each is alone, so what it waits for beside Slurm's own turns is replicas that leave. */
export async function ordinaryJobs(
  stage: Stage,
  options: { seed: number; over: () => boolean; log: (line: string) => void },
): Promise<{ waits_s: number[] }> {
  const random = seededRandom(options.seed);
  const waits_s: number[] = [];
  while (!options.over()) {
    await pause(5 + 15 * random(), options.over);
    if (options.over()) break;
    const nodes = 1 + Math.floor(2 * random());
    const gpus = 1 + Math.floor(4 * random());
    const seconds = 5 + Math.floor(20 * random());
    waits_s.push(await oneJob(stage, { nodes, gpus, seconds }));
    options.log(
      `an ordinary job for ${nodes} × ${gpus} GPUs and ${seconds} s started after ${waits_s.at(-1)} s`,
    );
    await pause(seconds, options.over);
  }
  return { waits_s };
}

/** Submits a job and waits until it runs. @returns seconds from submission to start, as Slurm counts them */
export async function oneJob(
  stage: Stage,
  { nodes, gpus, seconds }: { nodes: number; gpus: number; seconds: number },
): Promise<number> {
  const job_id = await stage.slurm(
    'sbatch',
    '--parsable',
    '--partition=gh200',
    `--nodes=${nodes}`,
    `--gres=gpu:gh200:${gpus}`,
    '--output=/dev/null',
    `--wrap=sleep ${seconds}`,
  );
  for (;;) {
    const line = await stage.slurm('scontrol', '--oneliner', 'show', 'job', job_id);
    const facts = new Map(line.split(' ').map((pair) => pair.split('=', 2) as [string, string]));
    if (facts.get('JobState') !== 'PENDING')
      return (Date.parse(facts.get('StartTime')!) - Date.parse(facts.get('SubmitTime')!)) / 1000;
    await sleep(250);
  }
}

async function pause(seconds: number, over: () => boolean): Promise<void> {
  for (let left = seconds; left > 0 && !over(); left--) await sleep(1000 * Math.min(1, left));
}
