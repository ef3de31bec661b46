/** The keeper as a process of this machine: looked at, started, ended. */
import { spawn } from 'node:child_process';
import { closeSync, existsSync, fstatSync, openSync } from 'node:fs';
import { hostname } from 'node:os';
import { dirname, join } from 'node:path';
import { lastingLock } from '../../host/folder-lock.ts';
import { holderOf } from '../../host/lock-state.ts';
import { isAlive, signalProcess } from '../../host/process-identity.ts';
import { compiledFile } from '../../host/programs.ts';
import { waitUntil } from '../../host/wait-until.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { keeperFiles, type StateLayout } from '../../spec/state-layout.ts';
import { explainFromLog } from '../state/log-files.ts';
import type { LoadedSite } from '../state/site-files.ts';
import { withKeeperStartLock } from './keeper-lock.ts';

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
 *
 *   deploy ──► ensureKeeper ─┐  start.lock: one after the other   ┌─ is one there? else start it, and wait for its lock
 *   stop ────► stopKeeper ───┘                                    └─ still not needed? end it, wait until it is gone
 *
 * A keeper that finds nothing to keep in its first round ends at once: its deployment was stopped while it came up.
 * @throws E_KEEPER_START with the last lines of its log; E_DEPLOYMENT_LOCKED
 */
export async function ensureKeeper(loaded: LoadedSite, command: Command): Promise<void> {
  const { layout } = loaded;
  await withKeeperStartLock(layout, command, async () => {
    if (inspectKeeper(layout).state !== 'running') await startKeeper(loaded, command.signal);
  });
}

/** Who asks, for those that wait. */
interface Command {
  command: string;
  signal: AbortSignal;
}

async function startKeeper(loaded: LoadedSite, signal: AbortSignal): Promise<void> {
  const { layout } = loaded;
  const logPath = join(layout.keeper_folder, keeperFiles.log);
  const log = openSync(logPath, 'a', 0o600);
  const before = fstatSync(log).size;
  let exit: { code: number | null; how: string } | undefined;
  try {
    const child = spawn(process.execPath, keeperArguments(loaded), {
      cwd: layout.keeper_folder,
      detached: true,
      stdio: ['ignore', log, log],
    });
    child.once('exit', (code, signalName) => {
      exit = { code, how: signalName ? `it ended by ${signalName}` : `it ended with exit code ${code}` };
    });
    await new Promise<void>((resolve, reject) => child.once('spawn', resolve).once('error', reject));
    child.unref();
  } finally {
    closeSync(log);
  }
  const up = await waitUntil(
    () => {
      // One that ended in order had nothing to keep.
      if (inspectKeeper(layout).state === 'running' || exit?.code === 0) return { running: true };
      return exit === undefined ? undefined : { running: false };
    },
    { timeout_ms: start_ms, interval_ms: 50, signal },
  );
  if (up?.running) return;
  const found = explainFromLog(logPath, before);
  throw new HpcserveError('E_KEEPER_START', {
    what: 'the process that keeps deployments alive did not start',
    because: [
      exit?.how ?? `it was not there after ${start_ms / 1000} s`,
      ...found.because,
      `log file: ${logPath}`,
    ],
    try: found.try,
  });
}

function keeperArguments({ path, layout }: LoadedSite): string[] {
  const program = compiledFile('control/keeper/main.js');
  return [program, '--site', path, '--state-dir', dirname(layout.root)];
}

/**
 * Ends the keeper of this host, where none is needed any more, and waits until it is gone. One on another host ends by
 * itself when nothing is left.
 */
export async function stopKeeper(
  layout: StateLayout,
  command: Command,
  isNeeded: () => boolean,
): Promise<void> {
  if (!existsSync(layout.keeper_folder)) return;
  await withKeeperStartLock(layout, command, async () => {
    const identity = holderOf(join(layout.keeper_folder, keeperFiles.lock));
    if (identity?.host !== hostname() || !isAlive(identity) || isNeeded()) return;
    signalProcess(identity.pid, 'SIGTERM');
    const gone = (): true | undefined => (isAlive(identity) ? undefined : true);
    if (!(await waitUntil(gone, { timeout_ms: stop_ms, interval_ms: 50 })))
      signalProcess(identity.pid, 'SIGKILL');
  });
}
