import type { Command } from 'commander';
import { listSites, readSite } from '../../control/state/site-files.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { CliContext } from '../context.ts';
import { formatTable } from '../format/table.ts';
import { sitePlaces } from '../site-session.ts';

export function registerSites(program: Command, context: CliContext): void {
  program
    .command('sites')
    .description('List the site configs that can be named with --site')
    .addHelpText('after', '\nExamples:\n  $ hpcserve sites\n  $ hpcserve sites --json | jq -r .sites[].path')
    .action(() => {
      const places = sitePlaces(context);
      const seen = new Set<string>();
      const sites = listSites(places).map((listed) => {
        const hidden = seen.has(listed.name);
        seen.add(listed.name);
        const description = describe(() => readSite(listed.path, places, undefined).site.description ?? '');
        return { ...listed, ...(hidden ? { hidden } : {}), description };
      });
      if (context.json) return context.out(JSON.stringify({ sites }));
      const rows = sites.map((site) => [
        site.name,
        `${site.origin}${'hidden' in site ? ' (hidden by the one above)' : ''}`,
        site.description,
        site.path,
      ]);
      const titles = ['SITE', 'ORIGIN', 'DESCRIPTION', 'FILE'];
      for (const line of formatTable(
        titles.map((title) => ({ title })),
        rows,
      ))
        context.out(line);
    });
}

/** A broken config must not hide the others: its error stands in its line. */
function describe(read: () => string): string {
  try {
    return read();
  } catch (error) {
    if (error instanceof HpcserveError) return `unusable: ${error.message}`;
    throw error;
  }
}
