import { readFileSync } from 'node:fs';
import type { Command } from 'commander';
import type { CliContext } from '../context.ts';
import { openEndpoint } from '../site-session.ts';

/** Where clients look for further authorities: those of Python (OpenSSL) and of Node. */
const caVariables = ['SSL_CERT_FILE', 'NODE_EXTRA_CA_CERTS'];

export function registerEndpoint(command: Command, context: CliContext): void {
  command
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
      const { url, key, ca_file, socket } = await openEndpoint(context);
      if (context.json) {
        // Its text too: who asks may be on another machine.
        const trust = ca_file === undefined ? {} : { ca_file, ca: readFileSync(ca_file, 'utf8') };
        return context.out(
          JSON.stringify({ url, key, ...trust, ...(socket === undefined ? {} : { socket }) }),
        );
      }
      if (!options.env) return context.out(url);
      const line = (name: string, value: string): void =>
        context.out(`export ${name}='${value.replaceAll("'", `'\\''`)}'`);
      line('OPENAI_BASE_URL', url);
      line('OPENAI_API_KEY', key);
      if (ca_file !== undefined) for (const name of caVariables) line(name, ca_file);
    });
}
