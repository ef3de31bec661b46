import type { Command } from 'commander';
import { emptyNode } from '../../control/gateway/drain.ts';
import { openAdmin } from '../admin-session.ts';
import type { CliContext } from '../context.ts';
import { parseSeconds } from '../parse-seconds.ts';

/** Slurm itself gives a job 30 s between SIGTERM and SIGKILL. */
const timeout_s_default = 60;

interface DrainOptions {
  timeout: number;
}

export function registerDrain(command: Command, context: CliContext): void {
  command
    .option('--timeout <time>', 'how long it may take', parseSeconds, timeout_s_default)
    .addHelpText(
      'after',
      `
Nothing new is sent there. Running answers go on where their models run else: with their keys and values (KV) where
there is time and room, else computed again from their tokens; clients see one unbroken stream. Then the agents of the
node end, and their jobs with them; the keeper submits others in their place, wherever Slurm puts them. To keep Slurm
from choosing the node again, have it drained in Slurm first, or set slurm.exclude.

Examples:
  $ hpcserve drain gh3
  $ hpcserve drain gh3 --timeout 5m --json`,
    )
    .action(async (node: string, { timeout }: DrainOptions) => {
      const { admin } = await openAdmin(context);
      const options = { timeout_ms: 1000 * timeout, signal: context.signal };
      const { agents, unreachable, moves } = await emptyNode(admin, node, options);
      const sum = { moved: 0, recomputed: 0 };
      for (const { moved, recomputed } of moves.values()) {
        sum.moved += moved;
        sum.recomputed += recomputed;
      }
      if (context.json) return context.out(JSON.stringify({ node, agents, unreachable, ...sum }));
      const jobs = agents.map(({ deployment, job_id }) =>
        job_id === undefined ? (deployment ?? 'an agent') : `${deployment} (job ${job_id})`,
      );
      context.out(`${node} is drained: ${jobs.join(', ')}`);
      for (const { because } of unreachable) context.note(`an agent there did not answer: ${because}`);
      if (sum.moved > 0) context.out(`${sum.moved} answers went on elsewhere with their KV`);
      if (sum.recomputed > 0)
        context.out(`${sum.recomputed} could not, and were computed again where they did not end here`);
    });
}
