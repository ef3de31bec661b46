/** Paths of site configs: `~` and `$NAME` mean what they mean in a shell of the user, and nothing else does. */
import { join } from 'node:path';
import { HpcserveError } from './errors/error.ts';
import type { SiteConfig } from './site.ts';

/**
 * `text` with a leading `~` and every `$NAME` or `${NAME}` replaced from `environment`.
 * @throws E_CONFIG_MISSING when a variable is not set: an empty replacement would point somewhere else;
 *   E_CONFIG_UNSUPPORTED for the home of somebody else
 */
export function expandSitePath(
  text: string,
  environment: Readonly<Record<string, string | undefined>>,
): string {
  const [, user] = /^~([^/]+)/.exec(text) ?? [];
  if (user !== undefined)
    throw new HpcserveError('E_CONFIG_UNSUPPORTED', {
      what: `the path ${text} is below the home of ${user}, which is not looked up`,
      because: 'of homes, a site config can name that of the person who runs hpcserve: ~/…',
      try: [`write it in full (echo ~${user} says where it is)`, `or ./${text}, where a folder is called so`],
      details: { path: text },
    });
  const withHome = text === '~' || text.startsWith('~/') ? `$HOME${text.slice(1)}` : text;
  return withHome.replace(/\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))/g, (_, braced, bare) => {
    const name: string = braced ?? bare;
    const value = environment[name];
    if (value === undefined || value === '')
      throw new HpcserveError('E_CONFIG_MISSING', {
        what: `the path ${text} needs $${name}, which is not set`,
        try: `set ${name}, or write the path in full in the site config`,
        details: { path: text, variable: name },
      });
    return value;
  });
}

/** A site config in which every path is expanded, once, on the login node. @throws as `expandSitePath` */
export function expandSite(
  site: SiteConfig,
  environment: Readonly<Record<string, string | undefined>>,
): SiteConfig {
  const expand = (text: string): string => expandSitePath(text, environment);
  const { runtime, slurm, native, gateway } = site;
  const { container, python } = runtime;
  const expanded: SiteConfig = {
    ...withPaths(site, ['scratch_dir', 'cache_dir', 'models_dir'], expand),
    state_dir: expand(site.state_dir),
    model_aliases: Object.fromEntries(
      Object.entries(site.model_aliases).map(([name, source]) => [name, expand(source)]),
    ),
    runtime: {
      ...withPaths(runtime, ['module_init', 'install_dir', 'node_path'], expand),
      container: {
        ...withPaths(container, ['command', 'image'], expand),
        binds: container.binds.map(expand),
      },
    },
    native: withPaths(native, ['library_dir'], expand),
    gateway: withPaths(gateway, ['socket'], expand),
  };
  if (slurm !== undefined) {
    expanded.slurm = withPaths(slurm, ['bin_dir', 'conf_file'], expand);
    if (slurm.ssh !== undefined)
      expanded.slurm.ssh = withPaths(slurm.ssh, ['identity_file', 'known_hosts_file', 'config_file'], expand);
  }
  if (python !== undefined)
    expanded.runtime.python = { ...withPaths(python, ['conda_base'], expand), path: expand(python.path) };
  if (gateway.tls !== undefined)
    expanded.gateway.tls = withPaths(gateway.tls, ['certificate_file', 'key_file', 'ca_file'], expand);
  return expanded;
}

/** A copy of a section in which those of its optional paths that are given are expanded. */
function withPaths<K extends string, T extends { [P in K]?: string | undefined }>(
  section: T,
  keys: readonly K[],
  expand: (text: string) => string,
): T {
  const copy: T = { ...section };
  for (const key of keys) {
    const text = section[key];
    if (text !== undefined) copy[key] = expand(text) as T[K];
  }
  return copy;
}

/** The folder for caches; undefined where the site names neither one nor a scratch folder. */
export function siteCacheDir(
  site: SiteConfig,
  environment: Readonly<Record<string, string | undefined>>,
): string | undefined {
  if (site.cache_dir !== undefined) return expandSitePath(site.cache_dir, environment);
  if (site.scratch_dir === undefined) return undefined;
  return join(expandSitePath(site.scratch_dir, environment), 'cache');
}
