/** Which site configs there are: a user's own, the operator's, and those that come with hpcserve. */
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';

export interface SitePlaces {
  /** `$XDG_CONFIG_HOME/hpcserve`; sites are in its `sites/`. */
  user_folder: string;
  /** `/etc/hpcserve`; sites are in its `sites/`. */
  site_wide_folder: string;
  working_folder: string;
  environment: Readonly<Record<string, string | undefined>>;
}

export interface ListedSite {
  name: string;
  path: string;
  origin: 'yours' | 'site-wide' | 'built in';
}

/** All site configs by name, the stronger place first where two have the same name. */
export function listSites(places: SitePlaces): ListedSite[] {
  const folders: [ListedSite['origin'], string][] = [
    ['yours', join(places.user_folder, 'sites')],
    ['site-wide', join(places.site_wide_folder, 'sites')],
    ['built in', join(packageRoot, 'site-configs')],
  ];
  return folders.flatMap(([origin, folder]) =>
    yamlFiles(folder).map((file) => ({
      name: file.replace(yamlEnd, ''),
      path: join(folder, file),
      origin,
    })),
  );
}

const yamlEnd = /\.ya?ml$/;

function yamlFiles(folder: string): string[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder)
    .filter((name) => yamlEnd.test(name) && !name.startsWith('.'))
    .sort();
}
