import type { Command } from 'commander';
import { baseUrl } from '../../control/gateway.ts';
import { GatewayAdmin } from '../../control/gateway-admin.ts';
import { lookAtGateway, readAdminToken } from '../../control/gateway-process.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { CliContext } from '../context.ts';
import { formatTable } from '../format/table.ts';
import { credentialFile, openSite } from '../site-session.ts';

export function registerKeys(program: Command, context: CliContext): void {
  const keys = program
    .command('keys')
    .description('Make, list and revoke API keys of the gateway')
    .addHelpText(
      'after',
      `
For who deployed the gateway: its admin token lies in the state folder, readable by you alone.

Examples:
  $ hpcserve keys create alice
  $ hpcserve keys list
  $ hpcserve keys revoke key_0ab…`,
    );
  keys
    .command('create <name>')
    .description('Make a key; it is shown this once and kept as a hash')
    .option('--save', 'also keep it as your own key for this gateway')
    .addHelpText('after', '\nExamples:\n  $ hpcserve keys create alice\n  $ hpcserve keys create me --save')
    .action(async (name: string, options: { save?: true }) => {
      const { admin, url, gateway_folder, site } = await openAdmin(context);
      const made = await admin.createKey(name);
      if (options.save)
        credentialFile(context).save({
          url,
          site,
          gateway_folder,
          key: made.key,
          key_id: made.id,
          created_at_ms: context.now_ms(),
        });
      if (context.json) context.out(JSON.stringify({ ...made, url }));
      else {
        context.out(made.key);
        context.note(`${made.id} for ${made.name}; use it with ${url}. It cannot be shown again.`);
      }
    });
  keys
    .command('list')
    .description('List the keys, without the keys themselves')
    .addHelpText('after', '\nExamples:\n  $ hpcserve keys list\n  $ hpcserve keys list --json')
    .action(async () => {
      const { admin } = await openAdmin(context);
      const all = await admin.listKeys();
      if (context.json) return context.out(JSON.stringify({ keys: all }));
      const date = (time_ms: number): string =>
        new Date(time_ms).toISOString().slice(0, 16).replace('T', ' ');
      for (const line of formatTable(
        [{ title: 'KEY' }, { title: 'NAME' }, { title: 'MADE (UTC)' }, { title: 'STATE' }],
        all.map((key) => [
          key.id,
          key.name,
          date(key.created_at_ms),
          key.revoked_at_ms === undefined ? 'valid' : `revoked ${date(key.revoked_at_ms)}`,
        ]),
      ))
        context.out(line);
    });
  keys
    .command('revoke <id>')
    .description('Make a key invalid at once')
    .addHelpText('after', '\nExamples:\n  $ hpcserve keys revoke key_0ab…')
    .action(async (id: string) => {
      const { admin } = await openAdmin(context);
      await admin.revokeKey(id);
      if (context.json) context.out(JSON.stringify({ id, revoked: true }));
      else context.note(`${id} is revoked`);
    });
}

async function openAdmin(
  context: CliContext,
): Promise<{ admin: GatewayAdmin; url: string; gateway_folder: string; site: string }> {
  const { layout, site } = openSite(context);
  const sight = await lookAtGateway(layout);
  if (sight.state !== 'running')
    throw new HpcserveError('E_GATEWAY_UNREACHABLE', {
      what: `the gateway of ${site.name} cannot be reached`,
      because: sight.because,
    });
  const { endpoint } = sight;
  return {
    admin: new GatewayAdmin(endpoint.url, readAdminToken(layout)),
    url: baseUrl(endpoint),
    gateway_folder: layout.gateway_folder,
    site: site.name,
  };
}
