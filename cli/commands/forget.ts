import type { Command } from 'commander';
import { forgetDeployment } from '../../control/forget.ts';
import type { CliContext } from '../context.ts';
import { openSession } from '../site-session.ts';

export function registerForget(command: Command, context: CliContext): void {
  command
    .option('-y, --yes', 'do not ask')
    .addHelpText(
      'after',
      `
Of a deployment that is stopped: its scripts, logs and records are removed, and \`status\` lists it no more. What it used
stays in the ledger. One that runs is to be stopped first.

Examples:
  $ hpcserve forget my-deployment
  $ hpcserve stop my-deployment && hpcserve forget my-deployment --yes`,
    )
    .action(async (name: string, { yes }: { yes?: true }) => {
      const operations = openSession(context, {
        command: 'hpcserve forget',
        emit: (event) => {
          if (event.kind === 'waiting') context.note(`waiting: ${event.what}`);
        },
      });
      const ask = (): Promise<boolean> => context.confirm(`Remove the logs and records of ${name} for ever?`);
      operations.store.require(name);
      if (yes !== true && !(await ask())) return;
      await forgetDeployment(operations, name);
      if (context.json) context.out(JSON.stringify({ deployment: name, forgotten: true }));
      else context.note(`${name} is forgotten`);
    });
}
