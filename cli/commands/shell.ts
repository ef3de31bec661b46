import type { Command } from 'commander';
import { choosePlace, shellPlaces, stepCommand } from '../../control/shell.ts';
import type { CliContext } from '../context.ts';
import { RemoteExit } from '../remote/remote-exit.ts';
import { openSession } from '../site-session.ts';
import { runAttached, runInTerminal } from '../terminal.ts';

interface ShellOptions {
  node?: string;
  unit?: string;
}

export function registerShell(command: Command, context: CliContext): void {
  command
    .option('--node <name>', 'of a deployment with several nodes')
    .option('--unit <name>', 'the node of this replica (see status)')
    .addHelpText(
      'after',
      `
On Slurm it is a step of the job (srun --overlap): it sees the job's cores, memory and GPUs, shares them with the
engine, and ends with the job. A command after -- is run instead of a shell; its exit code becomes that of hpcserve.

Examples:
  $ hpcserve shell my-deployment
  $ hpcserve shell gh1 -- nvidia-smi
  $ hpcserve shell my-deployment --unit my-model-1 -- numastat -p node`,
    )
    .action(async (target: string, command: readonly string[], options: ShellOptions) => {
      const operations = openSession(context, { command: 'hpcserve shell' });
      const { store, loaded, command_environment } = operations;
      const place = choosePlace(await shellPlaces(operations), store.list(), target, options);
      const interactive = context.tty.stdin && context.tty.stdout;
      const shell = context.environment.SHELL || '/bin/sh';
      const argv = command.length > 0 ? command : interactive ? [shell, '-l'] : [shell];
      if (interactive)
        context.note(
          loaded.site.kind === 'local'
            ? `${place.deployment} runs on this machine; in the folder of its launch:`
            : `${place.node}, in job ${place.job_id} of ${place.deployment}:`,
        );
      const code = await (interactive ? runInTerminal : runAttached)({
        argv: loaded.site.kind === 'local' ? argv : stepCommand(place, argv, interactive),
        cwd: store.launchFolder(place.deployment, place.launch_id),
        environment:
          loaded.site.kind === 'local'
            ? context.environment
            : { ...command_environment, TERM: context.environment.TERM },
      });
      if (code !== 0) throw new RemoteExit(code);
    });
}
