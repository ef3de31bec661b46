/** The same command on each of several sites. */
import { HpcserveError } from '../../spec/errors/error.ts';
import type { SiteCommands } from './site-commands.ts';

export interface SiteOutcome<T> {
  commands: SiteCommands;
  value?: T;
  error?: HpcserveError;
}

/** One site after the other; what fails on one is no reason to leave the next out. */
export async function onEach<T>(
  sites: readonly SiteCommands[],
  act: (commands: SiteCommands) => Promise<T>,
): Promise<SiteOutcome<T>[]> {
  const outcomes: SiteOutcome<T>[] = [];
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
export function requireAll<T>(outcomes: readonly SiteOutcome<T>[], what: string): void {
  const failed = outcomes.flatMap(({ error }) => error ?? []);
  const unknown = failed.filter(({ code }) => code === 'E_DEPLOYMENT_UNKNOWN');
  const serious =
    unknown.length < outcomes.length ? failed.filter((error) => !unknown.includes(error)) : unknown;
  if (serious.length === 0) return;
  if (serious.length === outcomes.length && new Set(serious.map(({ code }) => code)).size === 1)
    throw serious[0]!;
  throw new HpcserveError('E_SITES_PARTLY', {
    what: `${what} on ${outcomes.length - failed.length} of ${outcomes.length} sites`,
    because: serious.map(describeFailure),
    try: [...serious.flatMap(adviceOf), 'then run the same command again'],
    details: { failed: serious.map((error) => error.toJSON()) },
  });
}

/** `what: because [E_CODE]`. */
export function describeFailure(error: HpcserveError): string {
  return `${[error.message, ...error.because].join(': ')} [${error.code}]`;
}

/** What to do, at which site. */
export function adviceOf(error: HpcserveError): string[] {
  return error.try.map((advice) => `${String(error.details.at_site)}: ${advice}`);
}
