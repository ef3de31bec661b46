import type { Command } from 'commander';
import { ownProvider } from '../../control/state/delegations.ts';
import { ownUser } from '../../host/own-user.ts';
import type { CliContext } from '../context.ts';
import { openSite } from '../site-session.ts';

export function registerProvider(command: Command, context: CliContext): void {
  command
    .addHelpText(
      'after',
      `
What you deploy is signed in the name of a key of yours, which is made when it is first needed. Others give the
fingerprint where they trust you: \`hpcserve keys create NAME --providers FINGERPRINT\`, and \`mesh.users\` and
\`mesh.operators\` of a site config. The name is a label that anybody may bear.

Examples:
  $ hpcserve provider
  $ hpcserve provider --json`,
    )
    .action(() => {
      const { site, layout } = openSite(context);
      const own = ownProvider(layout, site, ownUser(context.environment).name);
      if (context.json) context.out(JSON.stringify(own));
      else {
        context.out(`${own.fingerprint}  ${own.name}`);
        context.note(`the key lies in ${own.key_file}`);
      }
    });
}
