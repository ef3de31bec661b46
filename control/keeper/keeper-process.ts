/** The keeper as a process of this machine: looked at, started, ended. */
import { spawn } from 'node:child_process';
import { closeSync, fstatSync, openSync } from 'node:fs';
import { hostname } from 'node:os';
import { dirname, join } from 'node:path';
import { lastingLock } from '../../host/folder-lock.ts';
import { holderOf } from '../../host/lock-state.ts';
import { makeFolders } from '../../host/make-folders.ts';
import { packageRoot } from '../../host/package-root.ts';
import { isAlive, signalProcess } from '../../host/process-identity.ts';
import { waitUntil } from '../../host/wait-until.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { keeperFiles, type StateLayout } from '../../spec/state-layout.ts';
import { explainFromLog } from '../state/log-files.ts';
import type { LoadedSite } from '../state/site-files.ts';

export type KeeperStatus =
  | { state: 'running'; host: string; pid: number }
  /** Nobody looks after deployments but the commands people type. */
  | { state: 'not_running' };

/** How long it may take until it holds its lock, ms: also that of one on another host that died. */
const start_ms = 15_000 + lastingLock.stale_ms;
/** How long it may take to end, ms; a Slurm command it waits for ends first. */
const stop_ms = 75_000;

export function inspectKeeper(layout: StateLayout): KeeperStatus {
  const holder = holderOf(join(layout.keeper_folder, keeperFiles.lock));
  return holder ? { state: 'running', host: holder.host, pid: holder.pid } : { state: 'not_running' };
}

/**
 * Starts the keeper as a process that outlives this command. Nothing happens where one runs, here or on another
 * login node.
 * @returns whether this call started it. @throws E_KEEPER_START with the last lines of its log
 */
export async function ensureKeeper(loaded: LoadedSite, signal: AbortSignal): Promise<boolean> {
  const { layout } = loaded;
  if (inspectKeeper(layout).state === 'running') return false;
  makeFolders(layout.keeper_folder);
  const logPath = join(layout.keeper_folder, keeperFiles.log);
  const log = openSync(logPath, 'a', 0o600);
  const before = fstatSync(log).size;
  let exit: string | undefined;
  try {
    const child = spawn(
      process.execPath,
      [
        '--enable-source-maps',
        join(packageRoot, 'dist', 'control', 'keeper', 'main.js'),
        '--site',
        loaded.path,
        '--state-dir',
        dirname(layout.root),
      ],
      { cwd: layout.keeper_folder, detached: true, stdio: ['ignore', log, log] },
    );
    child.once('exit', (code, signalName) => {
      exit = signalName ? `it ended by ${signalName}` : `it ended with exit code ${code}`;
    });
    await new Promise<void>((resolve, reject) => child.once('spawn', resolve).once('error', reject));
    child.unref();
  } finally {
    closeSync(log);
  }
  const up = await waitUntil(
    () => {
      if (inspectKeeper(layout).state === 'running') return { running: true };
      return exit === undefined ? undefined : { running: false };
    },
    { timeout_ms: start_ms, interval_ms: 50, signal },
  );
  if (up?.running) return true;
  const words = explainFromLog(logPath, before);
  throw new HpcserveError('E_KEEPER_START', {
    what: 'the process that keeps deployments alive did not start',
    because: [
      exit ?? `it was not there after ${start_ms / 1000} s`,
      ...words.because,
      `log file: ${logPath}`,
    ],
    try: words.try,
  });
}

/** Ends the keeper of this host and waits until it is gone. One on another host ends by itself when nothing is left. */
export async function stopKeeper(layout: StateLayout): Promise<void> {
  // Whoever holds the lock is the one: of two that were started at once, the other ended by itself.
  const identity = holderOf(join(layout.keeper_folder, keeperFiles.lock));
  if (identity?.host === hostname() && isAlive(identity)) {
    signalProcess(identity.pid, 'SIGTERM');
    const gone = (): true | undefined => (isAlive(identity) ? undefined : true);
    if (!(await waitUntil(gone, { timeout_ms: stop_ms, interval_ms: 50 })))
      signalProcess(identity.pid, 'SIGKILL');
  }
}
