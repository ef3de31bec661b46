/** What every operation on deployments works with: the site, its state, its runner, and who asks. */

import { type SlurmClient, SlurmCommandClient } from '../../slurm/client.ts';
import { LocalCommandRunner, slurmCommandEnvironment } from '../../slurm/command-runner.ts';
import { AccessTokens } from '../../slurm/firecrest/access-token.ts';
import { FirecrestApi } from '../../slurm/firecrest/api.ts';
import { FirecrestClient } from '../../slurm/firecrest/client.ts';
import { cacheEnvironment } from '../../spec/cache-environment.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import type { SlurmOverrides } from '../../spec/model-yaml.ts';
import { slurmSettings } from '../../spec/site.ts';
import { expandSitePath, siteCacheDir } from '../../spec/site-paths.ts';
import type { SlurmSettings } from '../../spec/site-slurm.ts';
import { DeploymentStore } from '../state/deployment-store.ts';
import type { LoadedSite } from '../state/site-files.ts';
import type { JobRunner } from './job-runner.ts';
import { JoinedNodeRunner } from './joined-runner.ts';
import { LocalRunner } from './local-runner.ts';
import type { PrepareFacts } from './prepare-launch.ts';
import { SlurmRunner } from './slurm-runner.ts';
import { SubmissionPace } from './submission-pace.ts';

export interface Operations {
  loaded: LoadedSite;
  store: DeploymentStore;
  runner: JobRunner;
  /** What Slurm's queue can be asked through, on a Slurm site; `runner` hands it what is not for joined nodes. */
  slurm_runner?: SlurmRunner;
  /** The Slurm client of a Slurm site. */
  slurm?: SlurmClient;
  /** Nodes that are known to be lost before Slurm knows it; absent: nobody watches them. */
  lost_nodes?: () => ReadonlySet<string>;
  /** What Slurm's commands see of the environment; of the local site, what jobs see. */
  command_environment: Readonly<Record<string, string>>;
  facts: PrepareFacts;
  /** Shown to other commands that wait: `hpcserve deploy`. */
  command: string;
  now_ms: () => number;
  emit: (event: ProgressEvent) => void;
  signal: AbortSignal;
}

export interface OperationsInput
  extends Pick<Operations, 'loaded' | 'facts' | 'command' | 'now_ms' | 'emit' | 'signal'> {
  overrides?: SlurmOverrides;
  overrideSource?: (key: string) => string | undefined;
}

export function openOperations(input: OperationsInput): Operations {
  const { overrides, overrideSource, ...rest } = input;
  refuseFromElsewhere(input.loaded);
  const store = new DeploymentStore(input.loaded.layout);
  if (input.loaded.site.kind === 'local') {
    const cache_dir = siteCacheDir(input.loaded.site, input.facts.environment);
    const caches = cache_dir === undefined ? {} : cacheEnvironment(cache_dir);
    return {
      ...rest,
      store,
      runner: new JoinedNodeRunner(new LocalRunner(undefined, caches), input.loaded.layout),
      command_environment: slurmCommandEnvironment(input.facts.environment),
    };
  }
  const commands = slurmRunner(input.loaded, input.facts.environment);
  const { command_timeout_s, firecrest, cluster } = slurmSettings(input.loaded.site);
  const command_timeout_ms = command_timeout_s * 1000;
  const slurm = firecrest
    ? openFirecrest(firecrest, input.facts.environment, command_timeout_ms)
    : new SlurmCommandClient(commands, {
        command_timeout_ms,
        cluster,
        onUnreadable: (message) => input.emit({ at_ms: input.now_ms(), kind: 'warning', message }),
      });
  const slurm_runner = new SlurmRunner({
    site: input.loaded,
    client: slurm,
    environment: input.facts.environment,
    now_ms: input.now_ms,
    pace: new SubmissionPace({
      folder: input.loaded.layout.root,
      per_minute: input.loaded.site.limits.submissions_per_minute,
      now_ms: input.now_ms,
      command: input.command,
      signal: input.signal,
    }),
    overrides,
    overrideSource,
  });
  const runner = new JoinedNodeRunner(slurm_runner, input.loaded.layout);
  const command_environment = {
    ...commands.environment,
    ...(cluster ? { SLURM_CLUSTERS: cluster } : {}),
  };
  return { ...rest, store, runner, slurm_runner, slurm, command_environment };
}

/** State and Slurm are there: the CLI runs its commands there, and what did not go that way has no business here. */
function refuseFromElsewhere({ site, provenance }: LoadedSite): void {
  if (site.slurm?.ssh === undefined) return;
  throw new HpcserveError('E_CONFIG_UNSUPPORTED', {
    what: `this command does not work over ssh, and ${site.name} is reached by it`,
    because: `${provenance('slurm.ssh') ?? 'slurm.ssh'}: ssh to ${site.slurm.ssh.host}`,
    try: `log in to ${site.slurm.ssh.host} and run it there`,
  });
}

function slurmRunner(
  { site }: LoadedSite,
  environment: Readonly<Record<string, string | undefined>>,
): LocalCommandRunner {
  const settings = slurmSettings(site);
  return new LocalCommandRunner({
    environment,
    bin_dir: settings.bin_dir && expandSitePath(settings.bin_dir, environment),
    conf_file: settings.conf_file && expandSitePath(settings.conf_file, environment),
  });
}

/**
 * By service and client, in this process: `requests_per_s` is what all who ask have together, the keeper's deployments
 * too.
 */
const firecrestApis = new Map<string, FirecrestApi>();

function openFirecrest(
  settings: NonNullable<SlurmSettings['firecrest']>,
  environment: Readonly<Record<string, string | undefined>>,
  timeout_ms: number,
): FirecrestClient {
  const { url, system, client_id } = settings;
  const key = JSON.stringify([url, client_id]);
  const api = firecrestApis.get(key) ?? openApi(settings, environment, timeout_ms);
  firecrestApis.set(key, api);
  return new FirecrestClient(api, system);
}

function openApi(
  settings: NonNullable<SlurmSettings['firecrest']>,
  environment: Readonly<Record<string, string | undefined>>,
  timeout_ms: number,
): FirecrestApi {
  const { url, token_url, client_id, client_secret_file, client_secret_env, requests_per_s } = settings;
  const secret =
    client_secret_file === undefined
      ? { variable: client_secret_env!, value: environment[client_secret_env!] }
      : { file: expandSitePath(client_secret_file, environment) };
  const tokens = new AccessTokens({ token_url, client_id, secret }, timeout_ms);
  return new FirecrestApi({ url, tokens, timeout_ms, requests_per_s });
}
