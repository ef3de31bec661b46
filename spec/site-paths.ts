/** Paths of site configs: `~` and `$NAME` mean what they mean in a shell of the user, and nothing else does. */
import { join } from 'node:path';
import { HpcserveError } from './errors/error.ts';
import type { SiteConfig } from './site.ts';

/**
 * `text` with a leading `~` and every `$NAME` or `${NAME}` replaced from `environment`.
 * @throws E_CONFIG_MISSING when a variable is not set: an empty replacement would point somewhere else.
 */
export function expandSitePath(
  text: string,
  environment: Readonly<Record<string, string | undefined>>,
): string {
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
  const optional = <K extends string>(key: K, text: string | undefined): { [P in K]?: string } =>
    text === undefined ? {} : ({ [key]: expand(text) } as { [P in K]?: string });
  const { runtime, slurm, native, gateway } = site;
  const { tls } = gateway;
  const { python, container } = runtime;
  return {
    ...site,
    state_dir: expand(site.state_dir),
    ...optional('scratch_dir', site.scratch_dir),
    ...optional('cache_dir', site.cache_dir),
    ...optional('models_dir', site.models_dir),
    model_aliases: Object.fromEntries(
      Object.entries(site.model_aliases).map(([name, source]) => [name, expand(source)]),
    ),
    ...(slurm === undefined
      ? {}
      : {
          slurm: {
            ...slurm,
            ...optional('bin_dir', slurm.bin_dir),
            ...optional('conf_file', slurm.conf_file),
            ...(slurm.ssh === undefined
              ? {}
              : {
                  ssh: {
                    ...slurm.ssh,
                    ...optional('identity_file', slurm.ssh.identity_file),
                    ...optional('known_hosts_file', slurm.ssh.known_hosts_file),
                    ...optional('config_file', slurm.ssh.config_file),
                  },
                }),
          },
        }),
    runtime: {
      ...runtime,
      ...optional('module_init', runtime.module_init),
      ...optional('install_dir', runtime.install_dir),
      ...optional('node_path', runtime.node_path),
      container: {
        ...container,
        ...optional('command', container.command),
        ...optional('image', container.image),
        binds: container.binds.map(expand),
      },
      ...(python === undefined
        ? {}
        : {
            python: {
              ...python,
              path: expand(python.path),
              ...optional('conda_base', python.conda_base),
            },
          }),
    },
    native: { ...native, ...optional('library_dir', native.library_dir) },
    gateway: {
      ...gateway,
      ...optional('socket', gateway.socket),
      ...(tls === undefined
        ? {}
        : {
            tls: {
              ...tls,
              ...optional('certificate_file', tls.certificate_file),
              ...optional('key_file', tls.key_file),
              ...optional('ca_file', tls.ca_file),
            },
          }),
    },
  };
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
