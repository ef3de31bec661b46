/**
 * Where things lie in the state folder (on a filesystem that login and compute nodes share). Folders are
 * 0700. One place knows these names; everybody else asks here.
 */
import { dirname, join } from 'node:path';
import type { RoutingPolicyName } from './gateway-settings.ts';
import type { LoginSettings } from './login-settings.ts';
import type { MeshSettings } from './mesh-settings.ts';
import type { OtelSettings } from './otel-settings.ts';

export interface StateLayout {
  /** `<state_dir>/<site>`. */
  root: string;
  mesh_folder: string;
  /** Of the first gateway; `gateway-folders.ts` knows those of others. */
  gateway_folder: string;
  /** API keys, which all gateways of the site share. */
  keys_folder: string;
  deployments_folder: string;
  /** Records of jobs, which outlive deployments and the scheduler's memory. */
  jobs_folder: string;
  /** Of the process that keeps deployments alive. */
  keeper_folder: string;
  /** Of what `hpcserve backfill` saw and did. */
  scavenger_folder: string;
  /** Of the site's own certificate authority, which all its gateways share. */
  tls_folder: string;
}

export function stateLayout(stateDir: string, site: string): StateLayout {
  const root = join(stateDir, site);
  return {
    root,
    mesh_folder: join(root, 'mesh'),
    gateway_folder: join(root, 'gateway'),
    keys_folder: join(root, 'keys'),
    deployments_folder: join(root, 'deployments'),
    jobs_folder: join(root, jobsFolderName),
    keeper_folder: join(root, 'keeper'),
    scavenger_folder: join(root, 'scavenger'),
    tls_folder: join(root, 'tls'),
  };
}

const jobsFolderName = 'jobs';

/** `StateLayout.jobs_folder` of the site that a gateway's folder belongs to. */
export function jobsFolderBeside(gateway_folder: string): string {
  return join(dirname(gateway_folder), jobsFolderName);
}

/** The key that makes its user a provider of this site (0600): of each user one, where several share a state folder. */
export function providerKeyFile(layout: Pick<StateLayout, 'root'>, uid: number): string {
  return join(layout.root, `provider-${uid}.key`);
}

/** Folder of a launch that somebody started by hand (`hpcserve run`). */
export function runFolder(layout: StateLayout, launchId: string): string {
  return join(layout.root, 'runs', launchId);
}

/** Folder of the shares that this site has of deployments over several sites: a model.yaml each. */
export function sharesFolder(layout: StateLayout): string {
  return join(layout.root, 'shares');
}

/** Files of the gateway folder. */
export const gatewayFiles = {
  /** GatewayConfig, written by control. */
  config: 'gateway.json',
  /** GatewayEndpoint, written by the gateway when it listens. */
  endpoint: 'endpoint.json',
  /** Secret for the admin paths of the gateway, 0600, written by the gateway. */
  admin_token: 'admin.token',
  ledger: 'ledger.sqlite',
  /** WorkloadFile, written by the gateway. */
  workload: 'workload.json',
  /** DemandFile, written by the gateway. */
  demand: 'demand.json',
  /** HeardStatements, written by the gateway. */
  sites_scaling: 'sites-scaling.json',
  /** What keys with limits used, for the other gateways of the site; written by the gateway. */
  spent: 'spent.json',
  /** The secret that hashes of prompts are made with, beside the folders of all gateways of the site (0600). */
  trace_salt: '../trace.salt',
  /** ProcessIdentity of the process that holds its port and starts it; there as long as it is meant to run. */
  process: 'process.json',
  /** TakenPort, written by the gateway where somebody else had its port. */
  taken_port: 'port-taken.json',
  /** PEM: the certificate that clients are shown now, written by the gateway. */
  certificate: 'certificate.pem',
  log: 'gateway.log',
} as const;

/** Files of the folder with the site's own certificate authority. */
export const tlsFiles = { ca: 'ca.pem', ca_key: 'ca.key' } as const;

/** Files of the keeper's folder. */
export const keeperFiles = {
  log: 'keeper.log',
  /** Held by the keeper as long as it lives. */
  lock: 'lock',
  /** Held by whoever starts or ends one. */
  start_lock: 'start.lock',
  demand: 'demand.json',
  /** KeeperStatement: what gateways of the site publish. */
  scaling: 'scaling.json',
  /** How models that follow demand over several sites stand: for `status`, and for the keeper that comes after. */
  sites: 'sites.json',
  /** How fine pipelines are whose stages follow the load, and why: for `status` and `top`. */
  granularity: 'granularity.json',
} as const;

/** Files of the scavenger's folder. */
export const scavengerFiles = { history: 'history.json', lock: 'lock' } as const;

/** Files of one deployment's folder `deployments/<name>/`. */
export const deploymentFiles = {
  state: 'deployment.json',
  spec: 'model.yaml',
  /** While a changed version starts: the one before. */
  previous_spec: 'model.previous.yaml',
  lock: 'lock',
  launches: 'launches',
  /** See `LaunchSpec.manifest_folder`. */
  manifests: 'manifests',
  /** Of pipelines whose stages are several jobs: see `folder` of `LaunchSpec.part`. */
  pipelines: 'pipelines',
} as const;

/** Files of one launch's folder `deployments/<name>/launches/<launch_id>/`. */
export const launchFiles = {
  launch: 'launch.json',
  script: 'job.sh',
  record: 'job.json',
  /** Output of the batch script and of srun's tasks. */
  log: 'job.log',
  /** By which its agents prove whose they are: a secret (0600). */
  delegation: 'delegation.json',
  agentState: (node: string): string => `${node}.state.json`,
  agentLog: (node: string): string => `${node}.agent.log`,
  unitLog: (node: string, unit: string): string => `${node}.${unit}.log`,
  /** What a part of a replica on several nodes tells the others. */
  part: (unit: string, rank: number): string => `${unit}.part-${rank}.json`,
  /** Where the stages of a unit on several nodes lie since they have changed; where these are jobs, by their group. */
  stages: (unit: string): string => `${unit}.stages.json`,
  /** Why a unit was given up, with its last lines; on disk before the agent leaves. */
  unitFailure: (node: string, unit: string): string => `${node}.${unit}.failure.json`,
} as const;

/**
 * In the folder of a job array, which lies beside those of its launches and holds their script: a link to the launch
 * that each task is. Slurm writes `%a` for the number of the task; without one, the beginning of them all.
 */
export function arrayTaskFolder(task: number | '%a' | ''): string {
  return `task-${task}`;
}

/**
 * Where the certificate for clients comes from: PEM files, or an authority of the site's own that is made where it is
 * absent.
 */
export type GatewayTls =
  | { certificate_file: string; key_file: string; ca_file?: string }
  | { authority_folder: string; names: string[] };

/** What control hands a gateway that it starts. */
export interface GatewayConfig {
  format: 1;
  site: string;
  /** `user@site`. */
  provider: string;
  host: string;
  /** 0: any free port; kept over restarts once chosen. */
  port: number;
  /** Processes that relay requests. 1, or absent: the gateway itself; more: so many beside it. */
  processes?: number;
  mesh_folder: string;
  gateway_folder: string;
  /** TLS for clients; absent: plain HTTP. */
  tls?: GatewayTls;
  /** A unix socket for clients of the same host, beside the port; absent: none. */
  socket?: string;
  /** Where deployments' pending jobs can be looked up, for honest 503 answers. */
  deployments_folder: string;
  /** Where the keeper of the site says what is to be published of demand; absent: nothing is. */
  keeper_folder?: string;
  /** API keys, which all gateways of a site share. Default: `keys` beside the gateway's folder. */
  keys_folder?: string;
  /** Sessions of the dashboard, which all gateways of a site share. Default: `logins` beside the gateway's folder. */
  logins_folder?: string;
  /** Where people sign in to the dashboard; absent: by keys alone. */
  login?: LoginSettings;
  /** Routing policy by name; see docs/gateway.md. Default: by-engine. */
  routing?: RoutingPolicyName;
  /** Of who runs it; made where there is none. Absent: it proves no provider, and operates nobody's sessions. */
  provider_key_file?: string;
  /** Absent: it takes no part in the gossip. */
  mesh?: MeshSettings;
  /** Longest expected wait for a place at a replica, beyond which requests are refused. Default: 120. */
  wait_max_s?: number;
  /** How long requests wait for a replica that loads. Default: `loadWaitDefault_s`. */
  load_wait_s?: number;
  /** Largest body of a request. Default: as much as is read at all. */
  body_bytes_max?: number;
  /** What bodies in flight may take, of all keys and of one. Default: 1 GB, and a quarter of it. */
  bodies_bytes_max?: number;
  bodies_key_bytes_max?: number;
  /** How long a request waits for its part of that. Default: 5. */
  body_wait_s?: number;
  /** Origins of web pages that may ask; `*`: all. Default: none. */
  origins?: string[];
  /** How long answers of the responses API are kept; default: not at all. Files and batches; default: 30 days. */
  responses_kept_s?: number;
  files_kept_s?: number;
  /** What is kept of each of them for one key. */
  kept_key_bytes_max?: number;
  /** The ledger keeps hashes of prompts for traces; see docs/usage.md. Default: false. */
  trace?: boolean;
  /** Where traces of requests go. Absent: where the environment says. */
  otel?: OtelSettings | undefined;
}

/** Where a gateway answers: `endpoint.json`. */
export interface GatewayEndpoint {
  format: 1;
  url: string;
  hostname: string;
  host: string;
  port: number;
  pid: number;
  session_id: string;
  started_at_ms: number;
  job_id?: string;
  /** Tells the process from a later one with its number. Absent: written by an earlier version. */
  process?: { start_ticks: number; boot_id: string };
  /** With TLS: a PEM file with the certificate that clients are shown. */
  certificate_file?: string;
  /** With TLS, where no public authority vouches for it: what clients are to trust, PEM. */
  ca_file?: string;
  /** Unix socket on which clients of the same host are answered too. */
  socket?: string;
}

/**
 * The port of the last run belonged to another user when the gateway came back: who asked there may have shown a key.
 */
export interface TakenPort {
  port: number;
  uid: number;
  found_at_ms: number;
}
