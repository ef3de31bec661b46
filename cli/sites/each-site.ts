/** Commands that do on each of several sites what they do on one: `stop --sites`, `status --sites`. */
import { setTimeout as sleep } from 'node:timers/promises';
import { onEach, requireAll, type SiteOutcome } from '../../control/sites/each-site.ts';
import { eventIn } from '../../control/sites/site-output.ts';
import type { CliContext } from '../context.ts';
import { style } from '../format/style.ts';
import { siteProgressView } from '../progress/view.ts';
import { loadSites } from './named-sites.ts';
import { SeveralSites } from './open-sites.ts';

/** Between two looks of `status --watch`: each asks the Slurm of every site. */
const watch_ms = 5_000;

/** @param argv of `stop`, without the sites */
export async function stopOnSites(
  context: CliContext,
  names: readonly string[],
  argv: readonly string[],
): Promise<void> {
  using several = await SeveralSites.open(context, loadSites(context, names));
  const outcomes = await onEach(several.sites, async (commands) => {
    const { name } = commands;
    const view = siteProgressView(context, name);
    try {
      await commands.run([...argv, '--progress', 'json'], (line) => view.show(eventIn(name, line)));
    } finally {
      view.close();
    }
  });
  for (const { commands, error } of outcomes)
    if (error?.code === 'E_DEPLOYMENT_UNKNOWN') context.note(`${commands.name}: there is nothing of it`);
  requireAll(outcomes, 'it is stopped');
}

export async function statusOnSites(
  context: CliContext,
  names: readonly string[],
  name: string | undefined,
  watch: boolean,
): Promise<void> {
  using several = await SeveralSites.open(context, loadSites(context, names));
  const argv = name === undefined ? ['status'] : ['status', name];
  for (;;) {
    const outcomes = await onEach(several.sites, (commands) =>
      context.json ? commands.run(argv) : commands.show(argv),
    );
    if (watch && context.tty.stdout && !context.json) context.write('\u001b[H\u001b[2J');
    if (context.json) context.out(JSON.stringify({ sites: outcomes.map(jsonOf) }));
    else
      for (const [at, outcome] of outcomes.entries()) {
        const title = `${outcome.commands.name}${outcome.commands.host === undefined ? '' : ` (${outcome.commands.host})`}`;
        context.out(`${at > 0 ? '\n' : ''}${style('bold', title, context.colour && context.tty.stdout)}`);
        context.out(textOf(outcome));
      }
    if (!watch) return requireAll(outcomes, 'it was looked at');
    await sleep(watch_ms, undefined, { signal: context.signal });
  }
}

function jsonOf({ commands, value, error }: SiteOutcome<string>): object {
  if (error) return { site: commands.name, error: error.toJSON() };
  return { site: commands.name, status: JSON.parse(value!) as unknown };
}

function textOf({ value, error }: SiteOutcome<string>): string {
  if (value !== undefined) return value.trimEnd();
  return error?.code === 'E_DEPLOYMENT_UNKNOWN' ? 'there is nothing of it here' : error!.toText();
}
