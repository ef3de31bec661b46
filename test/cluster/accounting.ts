/**
 * Accounting for the test cluster: a private MariaDB behind a private slurmdbd, with accounts and QoS to be refused by.
 */
import { execFile } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { findProgram, type Installation, installPrograms, pathWithSbin } from './install.ts';
import type { ClusterFolders } from './layout.ts';
import { waitUntil } from './processes.ts';
import { atLeastRelease, type SlurmPrograms } from './slurm-folder.ts';

const run = promisify(execFile);

export interface AccountingInput {
  folders: ClusterFolders;
  port: number;
  cluster_name: string;
  daemon_user: string;
  /** The ordinary user, who gets account `chat` and the QoS below. */
  user: string;
  programs: SlurmPrograms;
  /** Starts a daemon of the cluster with further environment. */
  startDaemon(name: string, argv: string[], env?: Record<string, string>): void;
}

/** QoS of the accounting cluster, made so that each refuses something. */
const accountingQos = {
  /** At most one job in the queue per user. */
  crowded: 'MaxSubmitJobsPerUser=1',
  /** At most five minutes, and jobs over it are refused at once. */
  brief: 'MaxWall=00:05:00 Flags=DenyOnLimit',
} as const;

export function ensureAccountingInstalled(): Promise<Installation> {
  return installPrograms(
    ['slurmdbd', 'sacctmgr', 'sacct', 'mariadbd', 'mariadb-install-db'],
    ['slurmdbd', 'slurm-wlm-mysql-plugin', 'mariadb-server-core', 'mariadb-client-core'],
  );
}

/** Starts the database and slurmdbd, and makes the cluster, the account and the QoS known. */
export async function startAccounting(input: AccountingInput): Promise<void> {
  const { folders, port } = input;
  const db = join(folders.run, 'db');
  const socket = join(db, 'socket');
  // The database has no password: only who may enter this folder can reach its socket.
  mkdirSync(db, { mode: 0o700 });
  // Servers of two clusters would take each other's files in /tmp.
  const temporary = join(db, 'tmp');
  mkdirSync(temporary);
  chmodSync(temporary, 0o1777);
  await run(findProgram('mariadb-install-db')!, [
    '--no-defaults',
    `--datadir=${join(db, 'data')}`,
    `--tmpdir=${temporary}`,
    '--auth-root-authentication-method=normal',
    '--skip-test-db',
    `--user=${input.daemon_user}`,
  ]);
  input.startDaemon('mariadbd', [
    'mariadbd',
    '--no-defaults',
    `--datadir=${join(db, 'data')}`,
    `--tmpdir=${temporary}`,
    `--socket=${socket}`,
    `--pid-file=${join(db, 'pid')}`,
    `--user=${input.daemon_user}`,
    '--skip-networking',
    '--innodb-buffer-pool-size=16M',
  ]);
  if (!(await waitUntil(() => existsSync(socket), 20_000))) throw new Error('mariadbd made no socket');
  writeFileSync(join(folders.run, 'slurmdbd.conf'), slurmdbdConf(input), { mode: 0o600 });
  input.startDaemon('slurmdbd', ['slurmdbd', '-D'], { MYSQL_UNIX_PORT: socket });
  const sacctmgr = (...args: string[]): Promise<unknown> =>
    run(input.programs.find('sacctmgr') ?? 'sacctmgr', ['--immediate', ...args], {
      env: { SLURM_CONF: folders.slurm_conf, PATH: pathWithSbin() },
      timeout: 20_000,
    });
  const answers = async (): Promise<boolean> => {
    try {
      await sacctmgr('show', 'qos');
      return true;
    } catch {
      // Not listening yet.
      return false;
    }
  };
  if (!(await waitUntil(answers, 20_000))) throw new Error(`slurmdbd does not answer on port ${port}`);
  await sacctmgr('add', 'cluster', input.cluster_name);
  for (const [name, limits] of Object.entries(accountingQos))
    await sacctmgr('add', 'qos', name, ...limits.split(' '));
  for (const account of ['chat', 'others'])
    await sacctmgr('add', 'account', account, `Cluster=${input.cluster_name}`);
  const qos = ['normal', ...Object.keys(accountingQos)].join(',');
  await sacctmgr(
    'add',
    'user',
    input.user,
    'Account=chat',
    `Cluster=${input.cluster_name}`,
    `QOS=${qos}`,
    'DefaultQOS=normal',
  );
}

/** Lines for slurm.conf. */
export function accountingConf(port: number, mungeSocket: string, version: string): string[] {
  return [
    'AccountingStorageType=accounting_storage/slurmdbd',
    'AccountingStorageHost=127.0.0.1',
    `AccountingStoragePort=${port}`,
    // Under this name clients of slurmdbd look for munge's socket.
    `AccountingStoragePass=${mungeSocket}`,
    'AccountingStorageEnforce=associations,limits,qos',
    atLeastRelease(version, '21.08') ? 'AccountingStoreFlags=job_comment' : 'AccountingStoreJobComment=YES',
    // Newer ones take the absence for it.
    ...(atLeastRelease(version, '23.11') ? [] : ['JobAcctGatherType=jobacct_gather/none']),
  ];
}

function slurmdbdConf(input: AccountingInput): string {
  const { run: folder } = input.folders;
  return [
    'AuthType=auth/munge',
    `AuthInfo=socket=${join(folder, 'munge', 'socket')}`,
    'DbdHost=localhost',
    'DbdAddr=127.0.0.1',
    `DbdPort=${input.port}`,
    `SlurmUser=${input.daemon_user}`,
    `LogFile=${join(folder, 'log', 'slurmdbd.log')}`,
    `PidFile=${join(folder, 'slurmdbd.pid')}`,
    'StorageType=accounting_storage/mysql',
    'StorageHost=localhost',
    `StorageUser=${input.daemon_user}`,
    'StorageLoc=slurm_acct_db',
    ...(input.programs.plugins === undefined ? [] : [`PluginDir=${input.programs.plugins}`]),
    '',
  ].join('\n');
}
