/** Libraries of the native engine that somebody added to a site (`hpcserve native add`): where they lie. */
import { realpathSync } from 'node:fs';
import { join } from 'node:path';
import type { SiteConfig } from '../../spec/site.ts';
import type { StateLayout } from '../../spec/state-layout.ts';

export interface AddedLibraries {
  /** One folder for each backend and release. */
  folder: string;
  /** A symbolic link to the one that jobs use. */
  link: string;
}

/** Beside the site's state, where all nodes see it. */
export function addedLibraries({ root }: Pick<StateLayout, 'root'>): AddedLibraries {
  const folder = join(root, 'native');
  return { folder, link: join(folder, 'current') };
}

/**
 * A site with the libraries that were added to it, where its config names none. As they are now: jobs keep the ones
 * that they began with.
 */
export function withAddedLibraries(site: SiteConfig, layout: StateLayout): SiteConfig {
  if (site.native.library_dir !== undefined) return site;
  try {
    return { ...site, native: { ...site.native, library_dir: realpathSync(addedLibraries(layout).link) } };
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    // None were added, or the state folder is not there (yet).
    if (code === 'ENOENT' || code === 'ENOTDIR' || code === 'EACCES') return site;
    throw error;
  }
}
