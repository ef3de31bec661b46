/** Which sites a command is for, where it is for several. */
import { type Command, InvalidArgumentError } from 'commander';
import { type LoadedSite, loadSite } from '../../control/state/site-files.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { DeploymentSpec } from '../../spec/model-yaml.ts';
import type { CliContext } from '../context.ts';
import { sitePlaces } from '../site-places.ts';

/** The option `--sites`, of every command that works on several. */
export function addSitesOption(command: Command, what: string): Command {
  return command.option('--sites <names>', `${what} (names or paths, with commas between)`, parseNames);
}

function parseNames(text: string): string[] {
  const names = text.split(',').map((name) => name.trim());
  if (names.some((name) => name === '')) throw new InvalidArgumentError('names with commas between.');
  return names;
}

/**
 * By `--sites`, else as model.yaml says; --site and HPCSERVE_SITE are stronger than the file, as they are for one site.
 * @returns undefined where the command is for one site
 * @throws E_USAGE where one and several are asked for
 */
export function sitesAsked(
  { configuration, note }: CliContext,
  flag: readonly string[] | undefined,
  spec?: DeploymentSpec,
): readonly string[] | undefined {
  const one = configuration.winner('site');
  if (flag !== undefined && one?.layer === 'flag')
    throw new HpcserveError('E_USAGE', { what: '--site and --sites contradict each other' });
  if (flag !== undefined) return flag;
  if (one?.layer === 'flag') return undefined;
  if (one?.layer !== 'environment') return spec?.sites;
  if (spec?.sites !== undefined)
    note(
      `warning: sites of model.yaml (${spec.sites.join(', ')}) is not used: ${one.place} says ${String(one.value)}`,
    );
  return undefined;
}

/** @throws E_CONFIG_MISSING; E_USAGE where two of them are the same */
export function loadSites(context: CliContext, names: readonly string[]): LoadedSite[] {
  const sites = names.map((name) =>
    loadSite(name, sitePlaces(context), context.configuration.get('state_dir')),
  );
  for (const [at, { site, path }] of sites.entries()) {
    const other = sites.slice(0, at).find((before) => before.site.name === site.name);
    if (other)
      throw new HpcserveError('E_USAGE', {
        what: `${site.name} is named twice`,
        because: other.path === path ? path : `${other.path} and ${path} have the same name`,
        try: 'name each site once; two site configs need two names',
      });
  }
  return sites;
}
