/**
 * Libraries of the native engine with a backend for GPUs: those that somebody added to a site (`hpcserve native add`),
 * and those that came with hpcserve (`npm run package -- --cuda`).
 */
import { existsSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
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

/** Backends that come in packages of their own; where both came, the first serves. */
const packagedBackends = ['cuda', 'vulkan'] as const;

/**
 * Where a package of libraries lies in an installation, as npm would put it there: nodes find it wherever they find
 * hpcserve.
 * @param root of the installation
 */
export function packagedFolder(root: string, backend: (typeof packagedBackends)[number]): string {
  const platform = `linux-x64-${backend}`;
  return join(root, 'node_modules/@node-llama-cpp', platform, 'bins', platform);
}

/**
 * A site with the libraries that were added to it, else with those that came along, where its config names none. As
 * they are now: jobs keep the ones that they began with.
 */
export function withAddedLibraries(site: SiteConfig, layout: StateLayout, root = packageRoot): SiteConfig {
  if (site.native.library_dir !== undefined) return site;
  const packaged = packagedBackends
    .map((backend) => packagedFolder(root, backend))
    .find((folder) => existsSync(folder));
  const library_dir = linkedFolder(addedLibraries(layout).link) ?? packaged;
  return library_dir === undefined ? site : { ...site, native: { ...site.native, library_dir } };
}

function linkedFolder(link: string): string | undefined {
  try {
    return realpathSync(link);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    // None were added, or the state folder is not there (yet).
    if (code === 'ENOENT' || code === 'ENOTDIR' || code === 'EACCES') return undefined;
    throw error;
  }
}
