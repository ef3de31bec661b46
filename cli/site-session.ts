/** From the command line to the things control works with: the site, its state and runner, the specification. */
import { dirname, join, resolve } from 'node:path';
import type { GatewayAddress } from '../control/gateway/client.ts';
import { type GatewayStatus, inspectGateway, inspectGateways } from '../control/gateway/process.ts';
import { baseUrl, type GatewayWays, waysOf } from '../control/gateway/url.ts';
import { type Operations, openOperations } from '../control/runner/operations.ts';
import { CredentialFile } from '../control/state/credentials.ts';
import { type LoadedSite, loadSite } from '../control/state/site-files.ts';
import { ownUser } from '../host/own-user.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import type { ProgressEvent } from '../spec/events.ts';
import {
  type DeploymentSpec,
  deploymentSchema,
  type ModelSpec,
  type SlurmOverrides,
} from '../spec/model-yaml.ts';
import type { StateLayout } from '../spec/state-layout.ts';
import { readYamlFile } from '../spec/yaml-document.ts';
import type { ConfigKey } from './config/config-schema.ts';
import type { CliContext } from './context.ts';
import { sitePlaces } from './site-places.ts';

export interface ReadSpec {
  spec: DeploymentSpec;
  /** Absolute path. */
  path: string;
  /** Where a key such as `slurm.account` was set: a flag, an environment variable, a file position. */
  overrideSource: (key: string) => string | undefined;
}

/** Keys of `slurm:` that flags, environment and config files may set too. */
const slurmKeys = ['partition', 'account', 'qos', 'reservation', 'constraint', 'time_limit'] as const;

/**
 * Reads model.yaml and brings in what was said elsewhere about Slurm: flags and environment are stronger
 * than the file, configuration files are weaker.
 */
export function readSpec(context: CliContext, file: string): ReadSpec {
  const path = resolve(context.working_folder, file);
  const read = readYamlFile(path, deploymentSchema);
  const slurm: SlurmOverrides = { ...read.value.slurm };
  const sources = new Map<string, string>();
  for (const key of slurmKeys) {
    const source = context.configuration.winner(`slurm.${key}` as ConfigKey);
    if (source?.value === undefined) continue;
    const stronger = source.layer === 'flag' || source.layer === 'environment';
    if (!stronger && slurm[key] !== undefined) continue;
    slurm[key] = String(source.value);
    sources.set(`slurm.${key}`, source.place);
  }
  return {
    spec: { ...read.value, slurm, models: read.value.models.map((model) => withPaths(model, dirname(path))) },
    path,
    overrideSource: (key) => sources.get(key) ?? read.provenance(key),
  };
}

/** Files beside the model: relative paths start at the YAML file, wherever the engine runs. */
function withPaths(model: ModelSpec, folder: string): ModelSpec {
  const { chat_template, environment_files } = model;
  return {
    ...model,
    environment_files: environment_files.map((path) => resolve(folder, path)),
    ...(chat_template === undefined ? {} : { chat_template: resolve(folder, chat_template) }),
  };
}

/** The site: by flag or environment, else as model.yaml says, else as configured, else the only one there is. */
export function openSite(context: CliContext, spec?: DeploymentSpec): LoadedSite {
  const { configuration } = context;
  const source = configuration.winner('site');
  const stronger = source?.layer === 'flag' || source?.layer === 'environment';
  if (!stronger && spec?.sites !== undefined)
    throw new HpcserveError('E_CONFIG_UNSUPPORTED', {
      what: `${spec.name} is for several sites (${spec.sites.join(', ')}), and this command works on one`,
      because: 'model.yaml has sites',
      try: `name one of them: --site ${spec.sites[0]}`,
    });
  const name = stronger ? (source.value as string) : (spec?.site ?? (source?.value as string | undefined));
  // A command looks twice: whether its site is reached by ssh, and then for itself.
  const sites = opened.get(context) ?? new Map<string | undefined, LoadedSite>();
  opened.set(context, sites);
  const loaded = sites.get(name) ?? loadSite(name, sitePlaces(context), configuration.get('state_dir'));
  sites.set(name, loaded);
  return loaded;
}
/** Sites that a command has read, by the name it was asked for. */
const opened = new WeakMap<CliContext, Map<string | undefined, LoadedSite>>();

export interface SessionOptions {
  command: string;
  spec?: ReadSpec;
  emit?: (event: ProgressEvent) => void;
}

export function openSession(context: CliContext, options: SessionOptions): Operations {
  const { spec } = options;
  return openOperations({
    loaded: openSite(context, spec?.spec),
    facts: { user: ownUser(context.environment).name, environment: context.environment },
    command: options.command,
    now_ms: context.now_ms,
    emit: options.emit ?? (() => {}),
    signal: context.signal,
    ...(spec ? { overrides: spec.spec.slurm, overrideSource: spec.overrideSource } : {}),
  });
}

export function credentialFile(context: CliContext): CredentialFile {
  return new CredentialFile(join(context.configuration.user_folder, 'credentials.json'));
}

/** The first gateway of the site that answers, with the layout as it sees it; else how the first of all is. */
export async function anyGateway(
  layout: StateLayout,
): Promise<{ layout: StateLayout; status: GatewayStatus }> {
  const gateways = await inspectGateways(layout);
  return (
    gateways.find(({ status }) => status.state === 'running') ?? {
      layout,
      status: gateways[0]?.status ?? (await inspectGateway(layout)),
    }
  );
}

/** Where to send requests, and with which key. */
export interface ClientEndpoint extends GatewayAddress, GatewayWays {
  key: string;
}

/**
 * The gateway to talk to: `url` of the configuration, else that of the site; and the key for it:
 * HPCSERVE_API_KEY, else the kept one.
 */
export async function openEndpoint(context: CliContext): Promise<ClientEndpoint> {
  const credentials = credentialFile(context);
  const configured = context.configuration.get('url');
  const fromEnvironment = context.environment.HPCSERVE_API_KEY;
  const withKey = (url: string, key: string | undefined): ClientEndpoint => {
    const found = fromEnvironment || key;
    if (found) return { url, key: found };
    throw new HpcserveError('E_CREDENTIALS', {
      what: `there is no key for ${url}`,
      because: `HPCSERVE_API_KEY is not set and ${credentials.path} has none for it`,
    });
  };
  if (configured !== undefined) {
    const url = /\/v1\/?$/.test(configured) ? configured.replace(/\/+$/, '') : baseUrl({ url: configured });
    return withKey(url, credentials.find({ url })?.key);
  }
  const { layout } = openSite(context);
  const { status } = await anyGateway(layout);
  if (status.state !== 'running')
    throw new HpcserveError('E_GATEWAY_UNREACHABLE', {
      what: 'the gateway of the site cannot be reached',
      because: status.because,
      ...(status.state === 'elsewhere'
        ? {
            try: `run this on ${status.endpoint.hostname}, or forward its port: ssh -L ${status.endpoint.port}:${status.endpoint.host}:${status.endpoint.port} ${status.endpoint.hostname}`,
          }
        : {}),
    });
  const url = baseUrl(status.endpoint);
  const { certificate_file } = status.endpoint;
  return {
    ...withKey(url, credentials.find({ gateway_folder: layout.gateway_folder, url })?.key),
    ...(certificate_file === undefined ? {} : { certificate_file }),
    ...waysOf(status.endpoint),
  };
}
