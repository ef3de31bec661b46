/** Finding and reading site configs. */
import { accessSync, constants } from 'node:fs';
import { delimiter, isAbsolute, join, resolve } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { nearest } from '../../spec/nearest.ts';
import { type SiteConfig, siteSchema } from '../../spec/site.ts';
import { expandSitePath } from '../../spec/site-paths.ts';
import { type StateLayout, stateLayout } from '../../spec/state-layout.ts';
import { readYamlFile } from '../../spec/yaml-document.ts';
import { withAddedLibraries } from './native-libraries.ts';
import { listSites, type SitePlaces } from './site-list.ts';

export interface LoadedSite {
  site: SiteConfig;
  path: string;
  /** `file:line:column` of a key path of the config. */
  provenance(key: string): string | undefined;
  layout: StateLayout;
}

/**
 * The site to use: the named one; else the only one of the user or operator; else `local` where there is
 * no sbatch.
 * @throws E_CONFIG_MISSING with the names there are, or with the advice to run `hpcserve init`.
 */
export function loadSite(
  name: string | undefined,
  places: SitePlaces,
  stateDir: string | undefined,
): LoadedSite {
  return readSite(findSite(name, places), places, stateDir);
}

export function readSite(path: string, places: SitePlaces, stateDir: string | undefined): LoadedSite {
  const file = readYamlFile(path, siteSchema);
  const site = file.value;
  const folder = resolve(
    places.working_folder,
    expandSitePath(stateDir ?? site.state_dir, places.environment),
  );
  const layout = stateLayout(folder, site.name);
  return { site: withAddedLibraries(site, layout), path, provenance: file.provenance, layout };
}

function findSite(name: string | undefined, places: SitePlaces): string {
  const sites = listSites(places);
  if (name !== undefined) {
    if (name.includes('/') || /\.ya?ml$/.test(name))
      return isAbsolute(name) ? name : resolve(places.working_folder, name);
    const found = sites.find((site) => site.name === name);
    if (found) return found.path;
    const names = [...new Set(sites.map((site) => site.name))];
    const near = nearest(name, names);
    throw new HpcserveError('E_CONFIG_MISSING', {
      what: `there is no site config "${name}"`,
      because: `known sites: ${names.join(', ') || 'none'}`,
      try: near
        ? `did you mean "${near}"?`
        : 'name one of them, give a path, or write one with `hpcserve init`',
    });
  }
  for (const origin of ['yours', 'site-wide'] as const) {
    const own = sites.filter((site) => site.origin === origin);
    if (own.length === 1) return own[0]!.path;
    if (own.length > 1)
      throw new HpcserveError('E_CONFIG_MISSING', {
        what: 'which site is meant?',
        because: `there are several: ${own.map((site) => site.name).join(', ')}`,
        try: `give --site NAME, or write "site: ${own[0]!.name}" into ${join(places.user_folder, 'config.yaml')}`,
      });
  }
  if (programOnPath('sbatch', places.environment))
    throw new HpcserveError('E_CONFIG_MISSING', {
      what: 'there is no site config yet, and this machine has Slurm',
      because: `looked in ${join(places.user_folder, 'sites')} and ${join(places.site_wide_folder, 'sites')}`,
      try: [
        'write one from what Slurm says of itself: hpcserve init',
        'or run on this machine alone: give --site local',
      ],
    });
  const local = sites.find((site) => site.name === 'local');
  if (local) return local.path;
  throw new HpcserveError('E_CONFIG_MISSING', {
    what: 'the built-in site config "local" is missing',
    because: `there is no ${join(packageRoot, 'site-configs', 'local.yaml')}`,
    try: 'unpack hpcserve again',
  });
}

/** Whether a program can be found as a shell would find it. */
export function programOnPath(
  program: string,
  environment: Readonly<Record<string, string | undefined>>,
): boolean {
  return programFolder(program, environment) !== undefined;
}

/** The folder of PATH in which a shell would find a program; undefined where there is none. */
export function programFolder(
  program: string,
  environment: Readonly<Record<string, string | undefined>>,
): string | undefined {
  return (environment.PATH ?? '').split(delimiter).find((folder) => {
    if (folder === '') return false;
    try {
      accessSync(join(folder, program), constants.X_OK);
      return true;
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === 'ENOENT' || code === 'EACCES' || code === 'ENOTDIR') return false;
      throw error;
    }
  });
}
