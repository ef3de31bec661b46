import { readFileSync } from 'node:fs';
import type { Command } from 'commander';
import { type ListedSite, listSites, type SitePlaces } from '../../control/state/site-list.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { CliContext } from '../context.ts';
import { fittedTable } from '../format/table.ts';
import { textWidth } from '../format/wrap.ts';
import { sitePlaces } from '../site-places.ts';

export function registerSites(command: Command, context: CliContext): void {
  command
    .addHelpText('after', '\nExamples:\n  $ hpcserve sites\n  $ hpcserve sites --json | jq -r .sites[].path')
    .action(async () => {
      const places = sitePlaces(context);
      const seen = new Set<string>();
      const sites = [];
      for (const listed of listSites(places)) {
        const hidden = seen.has(listed.name);
        seen.add(listed.name);
        const description =
          listed.origin === 'built in' ? shippedDescription(listed) : await describe(listed, places);
        sites.push({ ...listed, ...(hidden ? { hidden } : {}), description });
      }
      if (context.json) return context.out(JSON.stringify({ sites }));
      const rows = sites.map((site) => [
        site.name,
        `${site.origin}${'hidden' in site ? ' (hidden by the one above)' : ''}`,
        site.description,
        site.path,
      ]);
      const titles = ['SITE', 'ORIGIN', 'DESCRIPTION', 'FILE'];
      for (const line of fittedTable(
        titles.map((title) => ({ title })),
        rows,
        textWidth(context),
      ))
        context.out(line);
    });
}

/** Tests read those that come along whole; here their line does, without the parts that check what people wrote. */
function shippedDescription({ path }: ListedSite): string {
  return /^description: (.+)$/m.exec(readFileSync(path, 'utf8'))?.[1] ?? '';
}

/** A broken config must not hide the others: its error stands in its line. */
async function describe({ path }: ListedSite, places: SitePlaces): Promise<string> {
  const { readSite } = await import('../../control/state/site-files.ts');
  try {
    return readSite(path, places, undefined).site.description ?? '';
  } catch (error) {
    if (error instanceof HpcserveError) return `unusable: ${error.message}`;
    throw error;
  }
}
