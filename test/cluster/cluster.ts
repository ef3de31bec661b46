/**
 * Starts and stops a private, real Slurm on this machine: munged, slurmctld and six slurmd on ports of
 * their own, all files in one folder, nothing of the system's services touched.
 */
import { execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  chmodSync,
  closeSync,
  existsSync,
  lstatSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { userInfo } from 'node:os';
import { basename, delimiter, dirname, join } from 'node:path';
import { freePorts } from '../free-port.ts';
import { startAccounting } from './accounting.ts';
import { ClusterHosts } from './hosts.ts';
import { missingPrograms, pathWithSbin } from './install.ts';
import {
  type ClusterFolders,
  type ClusterShape,
  clusterFolders,
  clusterNodeKinds,
  clusterNodeNames,
  kill_wait_s,
} from './layout.ts';
import { withLock } from './lock.ts';
import {
  daemonMarker,
  daemonProcesses,
  endProcesses,
  type FoundProcess,
  isAlive,
  jobProcesses,
  unmountBelow,
  waitUntil,
} from './processes.ts';
import {
  type ClusterConfInput,
  type ClusterPorts,
  cgroupConf,
  gresConf,
  shapeFiles,
  slurmConf,
} from './slurm-conf.ts';
import { type SlurmPrograms, type SlurmRelease, slurmPrograms, slurmRelease } from './slurm-folder.ts';
import { argvAsUser, type ClusterUser, ensureClusterUser } from './user.ts';

/** `state.json`: how to reach the cluster, for people, tests and other processes. */
export interface ClusterState {
  format: 1;
  name: string;
  folder: string;
  /** What a process needs in its environment to use this cluster. */
  env: { SLURM_CONF: string; PATH: string };
  user: ClusterUser;
  ports: ClusterPorts;
  /** The Slurm it runs; absent: that of this machine. */
  slurm?: SlurmRelease;
  shape?: ClusterShape;
  daemons: { name: string; pid: number }[];
}

interface CommandResult {
  stdout: string;
  stderr: string;
  code: number;
}

interface RunOptions {
  input?: string;
  cwd?: string;
  timeout_ms?: number;
  /** Added to the environment of the cluster. */
  env?: Record<string, string>;
}

/** A running cluster. */
export interface Cluster {
  readonly state: ClusterState;
  /** The whole environment of an ordinary user on a login node of this cluster. */
  readonly env: Record<string, string>;
  readonly user: ClusterUser;
  /** Runs `argv` as the ordinary user (or as `root`), in that user's home unless told otherwise. */
  runAs(user: 'user' | 'root', argv: readonly string[], options?: RunOptions): Promise<CommandResult>;
  /** `argv` in the form that, spawned by this process, runs as the ordinary user. */
  argvAsUser(argv: readonly string[]): string[];
  /** The network of its nodes, where each is a host of its own. */
  readonly hosts: ClusterHosts | undefined;
  /** As when its power fails: all that runs on it is gone at once. Only where each node is a host of its own. */
  loseNode(node: string): void;
  /** It has started again, with an empty /tmp, and offers itself to Slurm. */
  bootNode(node: string): void;
  /** Processes started by jobs of this cluster that live now. */
  jobProcesses(): FoundProcess[];
  /** Cancels every job and waits until their processes are gone; throws when some stay. */
  cancelAllJobs(): Promise<void>;
}

export interface ClusterOptions {
  /** With slurmdbd: sacct, accounts, QoS and their limits. Takes some seconds more to start. */
  accounting?: boolean;
  /** Which Slurm it runs; absent: what `HPCSERVE_TEST_SLURM` names, else that of this machine. */
  slurm?: SlurmRelease;
  /** Another kind of site than the usual one. */
  shape?: ClusterShape;
}

/** What a stop found that should not have been there. */
export interface StopReport {
  was_up: boolean;
  /** Daemons that did not end on SIGTERM, and job processes that outlived their job. */
  killed: FoundProcess[];
}

const start_timeout_ms = 30_000;
/** Between two questions to Slurm. Lower: its commands take a core from what is waited for. */
const command_interval_ms = 100;
const lock_timeout_ms = 120_000;

/** Starts the cluster `name`, or attaches to it when it is already up and well. */
export async function startCluster(name = 'default', options: ClusterOptions = {}): Promise<Cluster> {
  const folders = prepareBase(name, options.shape);
  return withLock(folders.lock, lock_timeout_ms, () => startLocked(name, folders, options));
}

/** Stops the cluster `name`, whatever state it is in; does nothing when it is not there. */
export async function stopCluster(name = 'default', shape?: ClusterShape): Promise<StopReport> {
  const folders = prepareBase(name, shape);
  return withLock(folders.lock, lock_timeout_ms, () => stopLocked(folders));
}

/** Makes the base folder and proves that it is ours: names in /tmp can be taken by anyone. */
export function prepareBase(name: string, shape?: ClusterShape): ClusterFolders {
  const folders = clusterFolders(name, shape);
  mkdirSync(folders.base, { recursive: true, mode: 0o755 });
  const facts = lstatSync(folders.base);
  if (!facts.isDirectory() || facts.uid !== userInfo().uid)
    throw new Error(`${folders.base} exists and is not a folder of ours; remove it`);
  chmodSync(folders.base, 0o755);
  mkdirSync(folders.leases, { recursive: true, mode: 0o755 });
  return folders;
}

/** The state of the cluster `name`, or undefined when it is not up. */
export function readState(folders: ClusterFolders): ClusterState | undefined {
  if (!existsSync(folders.state)) return undefined;
  return JSON.parse(readFileSync(folders.state, 'utf8')) as ClusterState;
}

/** As `startCluster`, for a caller that already holds the lock. */
export async function startLocked(
  name: string,
  folders: ClusterFolders,
  options: ClusterOptions = {},
): Promise<Cluster> {
  const running = readState(folders);
  const slurm = options.slurm ?? releaseOfRun();
  if (running !== undefined) {
    const cluster = attach(running, folders);
    const fits =
      (running.ports.slurmdbd !== undefined) === (options.accounting === true) &&
      running.slurm === slurm &&
      running.shape === options.shape;
    const lives = running.daemons.every((daemon) => isAlive(daemon.pid));
    if (fits && lives && (await allNodesUp(cluster))) return cluster;
  }
  await stopLocked(folders);
  const missing = missingPrograms();
  if (missing.length > 0) throw new Error(`cannot start a Slurm cluster: missing ${missing.join(', ')}`);
  const programs = slurmPrograms(slurm);
  const user = ensureClusterUser();
  const ports = await choosePorts(options.accounting === true);
  const state: ClusterState = {
    format: 1,
    name,
    folder: folders.run,
    env: { SLURM_CONF: folders.slurm_conf, PATH: userPath(programs) },
    user,
    ports,
    daemons: [],
  };
  if (slurm !== undefined) state.slurm = slurm;
  if (options.shape !== undefined) state.shape = options.shape;
  writeFiles(state, folders, programs);
  const cluster = attach(state, folders);
  cluster.hosts?.make();
  try {
    await startDaemons(state, folders, programs);
    if (!(await waitUntil(() => allNodesUp(cluster), start_timeout_ms, command_interval_ms)))
      throw new Error(`the nodes were not idle within ${start_timeout_ms} ms`);
  } catch (error) {
    const logs = tailOfLogs(folders);
    await stopLocked(folders);
    throw new Error(`the test cluster did not come up: ${(error as Error).message}\n${logs}`, {
      cause: error,
    });
  }
  writeFileSync(folders.state, `${JSON.stringify(state, null, 2)}\n`);
  return cluster;
}

/** As `stopCluster`, for a caller that already holds the lock. */
export async function stopLocked(folders: ClusterFolders): Promise<StopReport> {
  const state = readState(folders);
  if (state?.daemons.every((daemon) => isAlive(daemon.pid))) await attach(state, folders).cancelAllJobs();
  const killed: FoundProcess[] = [];
  // Agents of jobs first (their slurmstepd would restart nothing, but files below are about to go), then
  // the daemons in reverse order of their start: slurmd, slurmctld, munged.
  const orphans = jobProcesses(folders.slurm_conf);
  await endProcesses(
    orphans.map((found) => found.pid),
    'SIGTERM',
    1_000,
  );
  killed.push(...orphans);
  const daemons = daemonProcesses(folders.base);
  const rank = (found: FoundProcess): number => daemonOrder.indexOf(programName(found.command));
  for (const [index] of daemonOrder.entries()) {
    const group = daemons.filter((found) => rank(found) === index);
    const stubborn = await endProcesses(
      group.map((found) => found.pid),
      'SIGTERM',
      10_000,
    );
    killed.push(...group.filter((found) => stubborn.includes(found.pid)));
  }
  const rest = daemonProcesses(folders.base);
  await endProcesses(
    rest.map((found) => found.pid),
    'SIGKILL',
    1_000,
  );
  killed.push(...rest);
  rmSync(folders.state, { force: true });
  if (process.getuid?.() === 0) new ClusterHosts(folders).remove();
  unmountBelow(folders.run);
  rmSync(folders.run, { recursive: true, force: true });
  return { was_up: state !== undefined, killed };
}

/** ClusterName in Slurm. */
function clusterName(name: string): string {
  return `hpcserve-${name}`;
}

/** The Slurm that this run of the tests is about (`npm test -- --slurm 24.11`); undefined: that of this machine. */
function releaseOfRun(): SlurmRelease | undefined {
  const named = process.env.HPCSERVE_TEST_SLURM;
  return named === undefined || named === '' ? undefined : slurmRelease(named);
}

/** PATH of the ordinary user: nothing of ours but where this Node and Slurm's commands are. */
function userPath({ commands, release }: SlurmPrograms): string {
  const node = dirname(process.execPath);
  // Node may lie where this machine has a Slurm of its own.
  const folders = release === undefined ? [node, commands] : [commands, node];
  return pathWithSbin([...new Set(folders)].join(delimiter));
}

const daemonOrder = ['slurmstepd', 'slurmd', 'slurmctld', 'slurmdbd', 'mariadbd', 'munged'];

/** `slurmd` of `/usr/sbin/slurmd -D -N gh1`, `slurmstepd` of `slurmstepd: [4.batch]`. */
function programName(command: string): string {
  return basename(command.split(' ', 1)[0] ?? '').replace(/:$/, '');
}

function attach(state: ClusterState, folders: ClusterFolders): Cluster {
  const { user } = state;
  const hosts = hostsOf(state, folders);
  const ownHosts = (): ClusterHosts => {
    if (hosts === undefined) throw new Error(`nodes of the cluster ${state.name} are one host`);
    return hosts;
  };
  const env: Record<string, string> = {
    ...state.env,
    HOME: user.home,
    USER: user.name,
    LOGNAME: user.name,
    SHELL: '/bin/bash',
    LANG: 'C.UTF-8',
  };
  const cluster: Cluster = {
    state,
    env,
    user,
    argvAsUser: (argv) => argvAsUser(user, argv),
    runAs: (who, argv, options = {}) =>
      runCommand(who === 'user' ? argvAsUser(user, argv) : [...argv], {
        ...options,
        cwd: options.cwd ?? (who === 'user' ? user.home : folders.base),
        env: { ...env, ...options.env },
      }),
    hosts,
    loseNode: (node) => {
      ownHosts().lose(node);
      state.daemons = state.daemons.filter(({ name }) => name !== `slurmd-${node}`);
    },
    bootNode: (node) => {
      ownHosts().mend(node);
      startSlurmd(state, folders, slurmPrograms(state.slurm), node);
      writeFileSync(folders.state, `${JSON.stringify(state, null, 2)}\n`);
    },
    jobProcesses: () => jobProcesses(folders.slurm_conf),
    cancelAllJobs: async () => {
      const patience_ms = (kill_wait_s + 15) * 1000;
      await cluster.runAs('root', ['scancel', '--state=PENDING', `--user=${user.name}`]);
      await cluster.runAs('root', ['scancel', `--user=${user.name}`]);
      const quiet = async (): Promise<boolean> => {
        const queue = await cluster.runAs('root', ['squeue', '--noheader', '--format=%i %T']);
        return queue.code === 0 && queue.stdout.trim() === '';
      };
      if (!(await waitUntil(quiet, patience_ms, command_interval_ms)))
        throw new Error(`jobs of ${user.name} were still there ${patience_ms} ms after scancel`);
    },
  };
  return cluster;
}

function hostsOf({ shape }: ClusterState, folders: ClusterFolders): ClusterHosts | undefined {
  return shape === 'separate-hosts' ? new ClusterHosts(folders) : undefined;
}

/** True when the controller answers and every node can take a job. */
async function allNodesUp(cluster: Cluster): Promise<boolean> {
  const answer = await cluster.runAs('root', ['sinfo', '--noheader', '--Node', '--all', '--format=%N %T']);
  if (answer.code !== 0) return false;
  const states = new Map(
    answer.stdout
      .trim()
      .split('\n')
      .map((line): [string, string] => {
        const [node = '', state = ''] = line.trim().split(/\s+/);
        return [node, state];
      }),
  );
  return clusterNodeNames.every((node) =>
    ['idle', 'mixed', 'allocated', 'completing'].includes(states.get(node) ?? ''),
  );
}

function writeFiles(state: ClusterState, folders: ClusterFolders, programs: SlurmPrograms): void {
  const { run } = folders;
  const { name, ports, shape } = state;
  for (const folder of ['', 'state', 'log', 'spool', 'dev', 'munge'])
    mkdirSync(join(run, folder), { recursive: true, mode: 0o755 });
  for (const node of clusterNodeNames) mkdirSync(join(run, 'spool', node), { mode: 0o755 });
  const most_gpus = Math.max(...clusterNodeKinds.map((kind) => kind.gpus?.count ?? 0));
  for (let index = 0; index < most_gpus; index++)
    symlinkSync('/dev/null', join(run, 'dev', `nvidia${index}`));
  writeFileSync(join(run, 'munge', 'key'), randomBytes(1024), { mode: 0o600 });
  const input: ClusterConfInput = {
    cluster_name: clusterName(name),
    folders,
    ports,
    daemon_user: userInfo().username,
    version: programs.version,
    plugins: programs.plugins,
    shape,
    hosts: hostsOf(state, folders),
  };
  writeFileSync(folders.slurm_conf, slurmConf(input));
  writeFileSync(join(run, 'gres.conf'), gresConf(folders));
  writeFileSync(join(run, 'cgroup.conf'), cgroupConf(input));
  for (const [file, text] of Object.entries(shapeFiles(input))) writeFileSync(join(run, file), text);
}

async function startDaemons(
  state: ClusterState,
  folders: ClusterFolders,
  programs: SlurmPrograms,
): Promise<void> {
  const start = (name: string, argv: string[], environment?: Record<string, string>): void =>
    startDaemon(state, folders, programs, name, argv, environment);
  const munge = join(folders.run, 'munge');
  const socket = join(munge, 'socket');
  start('munged', [
    'munged',
    '--foreground',
    `--key-file=${join(munge, 'key')}`,
    `--socket=${socket}`,
    `--pid-file=${join(munge, 'pid')}`,
    `--log-file=${join(folders.run, 'log', 'munged.log')}`,
    `--seed-file=${join(munge, 'seed')}`,
  ]);
  if (!(await waitUntil(() => existsSync(socket), 10_000))) throw new Error('munged made no socket');
  if (state.ports.slurmdbd !== undefined)
    await startAccounting({
      folders,
      port: state.ports.slurmdbd,
      cluster_name: clusterName(state.name),
      daemon_user: userInfo().username,
      user: state.user.name,
      programs,
      startDaemon: start,
    });
  start('slurmctld', ['slurmctld', '-D']);
  for (const node of clusterNodeNames) startSlurmd(state, folders, programs, node);
}

function startSlurmd(
  state: ClusterState,
  folders: ClusterFolders,
  programs: SlurmPrograms,
  node: string,
): void {
  const stepDaemon = programs.step_daemon === undefined ? [] : ['-d', programs.step_daemon];
  const slurmd = [programs.find('slurmd') ?? 'slurmd', '-D', ...stepDaemon, '-N', node];
  const prefix = hostsOf(state, folders)?.prefix(node) ?? [];
  startDaemon(state, folders, programs, `slurmd-${node}`, [...prefix, ...slurmd]);
}

function startDaemon(
  state: ClusterState,
  folders: ClusterFolders,
  programs: SlurmPrograms,
  name: string,
  argv: string[],
  environment: Record<string, string> = {},
): void {
  const [program = '', ...args] = argv;
  const output = openSync(join(folders.run, 'log', `${name}.out`), 'a');
  const child = spawn(programs.find(program) ?? program, args, {
    cwd: folders.run,
    detached: true,
    stdio: ['ignore', output, output],
    env: { ...state.env, ...environment, [daemonMarker]: folders.base },
  });
  closeSync(output);
  child.unref();
  if (child.pid === undefined) throw new Error(`${program} could not be started`);
  state.daemons.push({ name, pid: child.pid });
}

async function choosePorts(accounting: boolean): Promise<ClusterPorts> {
  const ports = await freePorts(['slurmctld', ...clusterNodeNames].length + (accounting ? 1 : 0));
  return {
    slurmctld: ports[0]!,
    slurmd: Object.fromEntries(clusterNodeNames.map((node, index) => [node, ports[index + 1]!])),
    ...(accounting ? { slurmdbd: ports.at(-1)! } : {}),
  };
}

function tailOfLogs(folders: ClusterFolders): string {
  return ['munged', 'mariadbd', 'slurmdbd', 'slurmctld', 'slurmd-gh1']
    .map((name) => {
      const file = join(folders.run, 'log', `${name}.out`);
      const text = existsSync(file) ? readFileSync(file, 'utf8') : '(no output)';
      return `--- ${name}\n${text.split('\n').slice(-15).join('\n')}`;
    })
    .join('\n');
}

function runCommand(argv: readonly string[], options: RunOptions): Promise<CommandResult> {
  const [program = '', ...args] = argv;
  return new Promise((resolve, reject) => {
    const child = execFile(
      program,
      args,
      {
        env: options.env,
        cwd: options.cwd,
        timeout: options.timeout_ms ?? 60_000,
        killSignal: 'SIGKILL',
        maxBuffer: 64 * 1024 * 1024,
      },
      (error, stdout, stderr) => {
        const code: unknown = error === null ? 0 : error.code;
        if (typeof code === 'number') resolve({ stdout, stderr, code });
        else reject(new Error(`${argv.join(' ')}: ${error?.message}\n${stderr}`, { cause: error }));
      },
    );
    // A command that ends before it has read its input closes the pipe; its exit status says why.
    child.stdin?.on('error', () => {});
    child.stdin?.end(options.input ?? '');
  });
}
