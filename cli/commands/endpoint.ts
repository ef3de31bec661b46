import type { Command } from 'commander';
import type { CliContext } from '../context.ts';
import { openDoor } from '../site-session.ts';

export function registerEndpoint(program: Command, context: CliContext): void {
  program
    .command('endpoint')
    .description('Print the base URL for OpenAI clients')
    .option('--url <url>', 'base URL of a gateway, instead of that of the site')
    .option('--env', 'print OPENAI_BASE_URL and OPENAI_API_KEY as lines for a shell')
    .addHelpText(
      'after',
      `
Examples:
  $ hpcserve endpoint
  $ eval "$(hpcserve endpoint --env)" && python my_client.py`,
    )
    .action(async (options: { env?: true }) => {
      const { url, key } = await openDoor(context);
      if (context.json) return context.out(JSON.stringify({ url, key }));
      if (!options.env) return context.out(url);
      context.out(`export OPENAI_BASE_URL='${url.replaceAll("'", `'\\''`)}'`);
      context.out(`export OPENAI_API_KEY='${key.replaceAll("'", `'\\''`)}'`);
    });
}
