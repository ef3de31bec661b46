import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { HpcserveError } from '../../spec/errors/error.ts';
import { nearest } from '../../spec/nearest.ts';
import { readYamlFile, type YamlFile } from '../../spec/yaml-document.ts';
import { type ConfigKey, configKeys, configSchema } from './config-schema.ts';

/** One place that may set a key, with what it says. */
export interface ConfigSource {
  /** For people: `--site`, `HPCSERVE_SITE`, `/home/a/.config/hpcserve/config.yaml:3:1`. */
  place: string;
  layer: 'flag' | 'environment' | 'launch folder' | 'user' | 'site-wide' | 'default';
  /** Undefined where this place does not set the key. */
  value?: unknown;
}

export interface ConfigLayers {
  environment: Readonly<Record<string, string | undefined>>;
  working_folder: string;
  /** Root for the site-wide file; `/etc` outside of tests. */
  etc_folder?: string;
}

type FileLayer = 'launch folder' | 'user' | 'site-wide';

/**
 * Settings of the command line and where each came from. Strongest first: flags, environment
 * (HPCSERVE_…), ./hpcserve.yaml of the launch folder, the user's config.yaml, the site-wide config.yaml.
 */
export class Configuration {
  readonly #layers: ConfigLayers;
  readonly #flags = new Map<ConfigKey, { flag: string; value: unknown }>();
  #files: { layer: FileLayer; path: string; file?: YamlFile<Record<string, unknown>> }[] | undefined;

  constructor(layers: ConfigLayers) {
    this.#layers = layers;
  }

  /** Called by the command line for each global or command flag that stands for a key. */
  /** @throws E_USAGE for a value that the key cannot have */
  setFlag(key: ConfigKey, flag: string, value: unknown): void {
    if (value === undefined) return;
    const parsed = configKeys[key].schema.safeParse(value);
    if (!parsed.success)
      throw new HpcserveError('E_USAGE', {
        what: `${flag} ${JSON.stringify(value)} cannot be`,
        because: parsed.error.issues.map((issue) => issue.message),
        try: `${flag}: ${configKeys[key].description}`,
      });
    this.#flags.set(key, { flag, value });
  }

  /** The value that counts, or undefined where nothing sets it and it has no default. */
  get<T = string>(key: ConfigKey): T | undefined {
    return this.winner(key)?.value as T | undefined;
  }

  /** The source that counts. */
  winner(key: ConfigKey): ConfigSource | undefined {
    return this.explain(key).find((source) => source.value !== undefined);
  }

  /** All places that may set a key, strongest first, with what each says. */
  explain(key: ConfigKey): ConfigSource[] {
    const description = configKeys[key];
    const sources: ConfigSource[] = [];
    const flag = this.#flags.get(key);
    sources.push({
      layer: 'flag',
      place: flag?.flag ?? description.flag ?? '(no flag)',
      value: flag?.value,
    });
    sources.push(this.#fromEnvironment(key));
    for (const { layer, path, file } of this.#readFiles()) {
      const value = file ? at(file.value, key) : undefined;
      const place = file?.provenance(key) ?? path;
      sources.push({ layer, place, value });
    }
    if (description.default !== undefined)
      sources.push({ layer: 'default', place: 'built in', value: description.default });
    return sources;
  }

  /** The key a person typed. @throws E_CONFIG_KEY with the nearest one. */
  static key(typed: string): ConfigKey {
    if (typed in configKeys) return typed as ConfigKey;
    const near = nearest(typed, Object.keys(configKeys));
    throw new HpcserveError('E_CONFIG_KEY', {
      what: `there is no configuration key "${typed}"`,
      because: `known keys: ${Object.keys(configKeys).join(', ')}`,
      ...(near ? { try: `did you mean "${near}"?` } : {}),
    });
  }

  /** `$XDG_CONFIG_HOME/hpcserve`, the folder of the user's own files. */
  get user_folder(): string {
    return userConfigFolder(this.#layers.environment);
  }

  get site_wide_folder(): string {
    return join(this.#layers.etc_folder ?? '/etc', 'hpcserve');
  }

  #fromEnvironment(key: ConfigKey): ConfigSource {
    const { variable, schema } = configKeys[key];
    const text = this.#layers.environment[variable];
    if (text === undefined || text === '') return { layer: 'environment', place: variable };
    const parsed = schema.safeParse(text);
    if (!parsed.success) {
      throw new HpcserveError('E_CONFIG_YAML', {
        what: `the environment variable ${variable} has a wrong value`,
        because: `${JSON.stringify(text)}: ${parsed.error.issues.map((issue) => issue.message).join('; ')}`,
        try: `set ${variable} to another value, or unset it`,
      });
    }
    return { layer: 'environment', place: variable, value: parsed.data };
  }

  #readFiles(): { layer: FileLayer; path: string; file?: YamlFile<Record<string, unknown>> }[] {
    if (this.#files) return this.#files;
    const places: { layer: FileLayer; path: string }[] = [
      { layer: 'launch folder', path: join(this.#layers.working_folder, 'hpcserve.yaml') },
      { layer: 'user', path: join(this.user_folder, 'config.yaml') },
      { layer: 'site-wide', path: join(this.site_wide_folder, 'config.yaml') },
    ];
    this.#files = places.map(({ layer, path }) =>
      existsSync(path) ? { layer, path, file: readYamlFile(path, configSchema) } : { layer, path },
    );
    return this.#files;
  }
}

function userConfigFolder(environment: Readonly<Record<string, string | undefined>>): string {
  const base = environment.XDG_CONFIG_HOME;
  if (base?.startsWith('/')) return join(base, 'hpcserve');
  const home = environment.HOME;
  if (!home) {
    throw new HpcserveError('E_CONFIG_MISSING', {
      what: 'there is no home folder to look for a configuration in',
      because: 'neither HOME nor XDG_CONFIG_HOME is set',
      try: 'set HOME',
    });
  }
  return join(home, '.config', 'hpcserve');
}

function at(value: unknown, key: string): unknown {
  let current = value;
  for (const part of key.split('.')) {
    if (typeof current !== 'object' || current === null) return undefined;
    current = (current as Record<string, unknown>)[part];
  }
  return current;
}
