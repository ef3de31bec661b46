/**
 * One device, one worker: two that take the memory of one GPU leave each other without. A lock (flock(2)) on a file of
 * this node and user, which the kernel gives back when its process is gone, however it went.
 */
import {
  chmodSync,
  closeSync,
  ftruncateSync,
  lstatSync,
  mkdirSync,
  openSync,
  readFileSync,
  writeSync,
} from 'node:fs';
import { constants } from 'node:os';
import { join } from 'node:path';
import koffi from 'koffi';
import { lockHolder } from '../host/file-locks.ts';
import { bootId } from '../host/process-identity.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { isSystemError, systemMessage } from '../spec/errors/system-error.ts';

/** From <sys/file.h>: LOCK_EX | LOCK_NB. */
const exclusively_or_not = 6;

/** Where locks of devices lie, and how one is taken. */
export interface DeviceLocks {
  /** Folders of the node alone; the first that takes a folder of this user is used. */
  parents: readonly string[];
  /** Tells nodes apart that have such a folder in common after all. */
  boot_id: string;
  /** @returns 0, or the number of the error */
  lock(descriptor: number): number;
}

/**
 * Folders of a node that all its processes see. $TMPDIR is none: a job may have one of its own, or nodes one in common.
 * HPCSERVE_DEVICE_LOCKS names another, for processes that are to be as on a node of their own.
 */
export function nodeLocks(environment: NodeJS.ProcessEnv = process.env): DeviceLocks {
  const own = environment.HPCSERVE_DEVICE_LOCKS;
  return { parents: own === undefined ? ['/tmp', '/dev/shm'] : [own], boot_id: bootId(), lock: flock };
}

function flock(descriptor: number): number {
  const call = koffi.load('libc.so.6').func('int flock(int fd, int operation)');
  return call(descriptor, exclusively_or_not) === 0 ? 0 : koffi.errno();
}

/**
 * Holds a device until this process ends, or what it returns is called. Where there is no place for locks, or the place
 * knows none, the device is used without.
 * @param identity of the device on its node: the UUID or the PCI bus of a GPU
 * @param device in words
 * @param warn is told why there is no lock
 * @throws HpcserveError E_DEVICE_TAKEN with the process that holds it
 */
export function holdDevice(
  identity: string,
  device: string,
  warn: (text: string) => void,
  locks: DeviceLocks = nodeLocks(),
): () => void {
  const without = (because: string): (() => void) => {
    warn(`nothing keeps another worker from ${device}: ${because}`);
    return () => undefined;
  };
  const refused: string[] = [];
  const folder = locksFolder(locks, refused, true);
  if (folder === undefined) return without(refused.join('; '));
  const path = lockFile(folder, identity, locks);
  let descriptor: number;
  try {
    descriptor = openSync(path, 'a+', 0o600);
  } catch (error) {
    return without(systemMessage(error));
  }
  const code = locks.lock(descriptor);
  if (code !== 0 && code !== constants.errno.EWOULDBLOCK) {
    closeSync(descriptor);
    return without(`${path} cannot be locked (${nameOf(code)})`);
  }
  if (code !== 0) {
    const holder = notedHolder(path);
    closeSync(descriptor);
    throw new HpcserveError('E_DEVICE_TAKEN', {
      what: `${device} is computed on by another device worker of yours`,
      because: `process ${holder || 'unknown'} holds ${path}`,
      details: { device, pid: Number(holder) },
    });
  }
  noteHolder(descriptor);
  return () => closeSync(descriptor);
}

/** The worker that holds a device of this node, as far as it is this user's. @returns its process */
export function deviceHolder(identity: string, locks: DeviceLocks = nodeLocks()): number | undefined {
  const folder = locksFolder(locks, [], false);
  if (folder === undefined) return undefined;
  const path = lockFile(folder, identity, locks);
  const holder = lockHolder(path);
  // Files of other filesystems may have the same number: what the holder wrote says that it is this one.
  return holder !== undefined && notedHolder(path) === String(holder) ? holder : undefined;
}

/** Where the disk is full, the lock holds all the same, and nobody is told who has it. */
function noteHolder(descriptor: number): void {
  try {
    ftruncateSync(descriptor);
    writeSync(descriptor, `${process.pid}\n`);
  } catch (error) {
    if (!isSystemError(error)) throw error;
  }
}

/** Empty where nothing says. */
function notedHolder(path: string): string {
  try {
    return readFileSync(path, 'utf8').trim();
  } catch (error) {
    if (!isSystemError(error)) throw error;
    return '';
  }
}

/**
 * The folder of this user's locks; undefined where no place takes one.
 * @param refused is told of each place why
 * @param make where it is not there yet
 */
function locksFolder({ parents }: DeviceLocks, refused: string[], make: boolean): string | undefined {
  const own = process.getuid?.() ?? 0;
  for (const parent of parents) {
    const folder = join(parent, `hpcserve-devices-${own}`);
    try {
      if (make) makeFolder(folder);
      // Whoever makes it first in a place that all may write to has it: a link would lead elsewhere.
      const found = lstatSync(folder);
      if (!found.isDirectory() || found.uid !== own) {
        refused.push(`${folder} is no folder of this user`);
        continue;
      }
      if ((found.mode & 0o077) !== 0) chmodSync(folder, 0o700);
      return folder;
    } catch (error) {
      if (!isSystemError(error)) throw error;
      refused.push(systemMessage(error));
    }
  }
  return undefined;
}

function makeFolder(folder: string): void {
  try {
    mkdirSync(folder, { mode: 0o700 });
  } catch (error) {
    if (!isSystemError(error) || error.code !== 'EEXIST') throw error;
  }
}

function lockFile(folder: string, identity: string, { boot_id }: DeviceLocks): string {
  return join(folder, `${identity.replace(/[^\w.-]+/g, '_').slice(0, 120)}.${boot_id}.lock`);
}

function nameOf(code: number): string {
  const found = Object.entries(constants.errno).find(([, number]) => number === code);
  return found?.[0] ?? `error ${code}`;
}
