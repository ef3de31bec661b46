/** Commands that do on each of several sites what they do on one: `stop --sites`, `status --sites`. */
import { setTimeout as sleep } from 'node:timers/promises';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import type { CliContext } from '../context.ts';
import { style } from '../format/style.ts';
import { siteProgressView } from '../progress/view.ts';
import { loadSites } from './named-sites.ts';
import { SeveralSites } from './several-sites.ts';
import type { SiteCommands } from './site-commands.ts';

/** Between two looks of `status --watch`: each asks the Slurm of every site. */
const watch_ms = 5_000;

interface Outcome<T> {
  commands: SiteCommands;
  value?: T;
  error?: HpcserveError;
}

/** One site after the other; what fails on one is no reason to leave the next out. */
async function onEach<T>(
  { sites }: SeveralSites,
  act: (commands: SiteCommands) => Promise<T>,
): Promise<Outcome<T>[]> {
  const outcomes: Outcome<T>[] = [];
  for (const commands of sites) {
    try {
      outcomes.push({ commands, value: await act(commands) });
    } catch (thrown) {
      outcomes.push({ commands, error: HpcserveError.from(thrown) });
    }
  }
  return outcomes;
}

/**
 * A site that had no share knows nothing of the deployment, which is as it should be; that none knows of it is not.
 * @throws the error of the only one that failed, or E_SITES_PARTLY with all of them
 */
function requireAll<T>(outcomes: readonly Outcome<T>[], what: string): void {
  const failed = outcomes.flatMap(({ error }) => error ?? []);
  const unknown = failed.filter(({ code }) => code === 'E_DEPLOYMENT_UNKNOWN');
  const serious =
    unknown.length < outcomes.length ? failed.filter((error) => !unknown.includes(error)) : unknown;
  if (serious.length === 0) return;
  if (serious.length === outcomes.length && new Set(serious.map(({ code }) => code)).size === 1)
    throw serious[0]!;
  throw new HpcserveError('E_SITES_PARTLY', {
    what: `${what} on ${outcomes.length - failed.length} of ${outcomes.length} sites`,
    because: serious.map((error) => `${[error.message, ...error.because].join(': ')} [${error.code}]`),
    try: [
      ...serious.flatMap((error) => error.try.map((advice) => `${String(error.details.at_site)}: ${advice}`)),
      'then run the same command again',
    ],
    details: { failed: serious.map((error) => error.toJSON()) },
  });
}

/** @param words of `stop`, without the sites */
export async function stopOnSites(
  context: CliContext,
  names: readonly string[],
  words: readonly string[],
): Promise<void> {
  using several = await SeveralSites.open(context, loadSites(context, names));
  const outcomes = await onEach(several, async (commands) => {
    const view = siteProgressView(context, commands.name);
    try {
      await commands.run([...words, '--progress', 'json'], (line) =>
        view.show(JSON.parse(line) as ProgressEvent),
      );
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
  const words = ['status', ...(name === undefined ? [] : [name])];
  for (;;) {
    const outcomes = await onEach(several, (commands) =>
      context.json ? commands.run(words) : commands.show(words),
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

function jsonOf({ commands, value, error }: Outcome<string>): object {
  return {
    site: commands.name,
    ...(error ? { error: error.toJSON() } : { status: JSON.parse(value!) as unknown }),
  };
}

function textOf({ value, error }: Outcome<string>): string {
  if (value !== undefined) return value.trimEnd();
  return error?.code === 'E_DEPLOYMENT_UNKNOWN' ? 'there is nothing of it here' : error!.toText();
}
