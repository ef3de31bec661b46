import type { Command } from 'commander';
import { Keeper } from '../../control/keeper/keeper.ts';
import { withKeeperLock } from '../../control/keeper/keeper-lock.ts';
import { ownUser } from '../../host/own-user.ts';
import type { CliContext } from '../context.ts';
import { progressView } from '../progress/view.ts';
import { openSite } from '../site-session.ts';

export function registerKeep(command: Command, context: CliContext): void {
  command
    .option('--once', 'look once and act, then end: for cron')
    .addHelpText(
      'after',
      `
\`deploy\` starts this as a process of its own that ends with the last deployment; there is one a site. Where
login nodes allow no such process (keeper.place: none in the site config), run it in a terminal or from cron.

Examples:
  $ hpcserve keep
  $ hpcserve keep --once`,
    )
    .action(async (options: { once?: true }) => {
      const view = progressView(context);
      const loaded = openSite(context);
      const keeper = new Keeper({
        input: {
          loaded,
          facts: { user: ownUser(context.environment).name, environment: context.environment },
          command: 'hpcserve keep',
          now_ms: context.now_ms,
          signal: context.signal,
        },
        emit: (event) => view.show(event),
        end_when_idle: false,
      });
      try {
        await withKeeperLock(loaded.layout, 'hpcserve keep', async () => {
          if (options.once) await keeper.round();
          else await keeper.run();
        });
      } finally {
        view.close();
      }
    });
}
