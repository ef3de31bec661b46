/** What every operation on deployments works with: the site, its state, its runner, and who asks. */

import { type SlurmClient, SlurmCommandClient } from '../slurm/client.ts';
import { LocalCommandRunner, slurmCommandEnvironment } from '../slurm/command-runner.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import type { ProgressEvent } from '../spec/events.ts';
import type { SlurmOverrides } from '../spec/model-yaml.ts';
import { slurmSettings } from '../spec/site.ts';
import { expandSitePath } from '../spec/site-paths.ts';
import { DeploymentStore } from './deployment-store.ts';
import type { JobRunner } from './job-runner.ts';
import { LocalRunner } from './local-runner.ts';
import type { PrepareFacts } from './prepare-launch.ts';
import type { LoadedSite } from './site-files.ts';
import type { LiveFacts } from './site-offers.ts';
import { SlurmRunner } from './slurm-runner.ts';
import { SubmissionPace } from './submission-pace.ts';

export interface Operations {
  loaded: LoadedSite;
  store: DeploymentStore;
  runner: JobRunner;
  /** The Slurm client of a Slurm site. */
  slurm?: SlurmClient;
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
  if (input.loaded.site.kind === 'local')
    return {
      ...rest,
      store,
      runner: new LocalRunner(),
      command_environment: slurmCommandEnvironment(input.facts.environment),
    };
  const commands = slurmRunner(input.loaded, input.facts.environment);
  const slurm = new SlurmCommandClient(commands, {
    command_timeout_ms: slurmSettings(input.loaded.site).command_timeout_s * 1000,
  });
  const runner = new SlurmRunner({
    site: input.loaded,
    client: slurm,
    environment: input.facts.environment,
    pace: new SubmissionPace({
      folder: input.loaded.layout.root,
      per_minute: input.loaded.site.limits.submissions_per_minute,
      now_ms: input.now_ms,
      command: input.command,
      signal: input.signal,
    }),
    ...(overrides ? { overrides } : {}),
    ...(overrideSource ? { overrideSource } : {}),
  });
  return { ...rest, store, runner, slurm, command_environment: commands.environment };
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
    ...(settings.bin_dir ? { bin_dir: expandSitePath(settings.bin_dir, environment) } : {}),
    ...(settings.conf_file ? { conf_file: expandSitePath(settings.conf_file, environment) } : {}),
  });
}

/** Whether Slurm is asked what there is: it must answer, it may, or nobody asks. */
export type AskSlurm = 'must' | 'may' | 'never';

/**
 * What the cluster says of itself now, as far as it can be asked.
 * @returns undefined on the local site, and where the site config alone has to do; `unasked` then says why.
 */
export async function factsToPlanWith(
  operations: Operations,
  ask: AskSlurm,
): Promise<{ live?: LiveFacts; unasked?: string }> {
  if (!operations.slurm) return {};
  if (ask === 'never') return { unasked: '--offline was given' };
  try {
    const live = await liveFacts(operations);
    return live ? { live } : {};
  } catch (error) {
    const away =
      error instanceof HpcserveError &&
      (error.code === 'E_SLURM_UNREACHABLE' || error.code === 'E_SLURM_COMMAND_MISSING');
    if (ask === 'must' || !away) throw error;
    return { unasked: [error.message, ...error.because].join(': ') };
  }
}

/** What the cluster says of itself now; undefined on the local site. */
export async function liveFacts(operations: Operations): Promise<LiveFacts | undefined> {
  const { slurm } = operations;
  if (!slurm) return undefined;
  const [nodes, partitions] = await Promise.all([slurm.nodeGroups(), slurm.partitions()]);
  return { nodes, partitions };
}
