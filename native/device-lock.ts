/**
 * One device, one worker: two that take the memory of one GPU leave each other without. A lock (flock(2)) on a file of
 * this node and user, which the kernel gives back when its process is gone, however it went.
 */
import { closeSync, ftruncateSync, openSync, readFileSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import koffi from 'koffi';
import { lockHolder } from '../host/file-locks.ts';
import { makePrivateFolder } from '../host/make-folders.ts';
import { HpcserveError } from '../spec/errors/error.ts';

/** From <sys/file.h>: LOCK_EX | LOCK_NB. */
const exclusively_or_not = 6;

/**
 * Holds a device until this process ends, or what it returns is called.
 * @param identity of the device on its node: the UUID or the PCI bus of a GPU
 * @param device in words
 * @throws HpcserveError E_DEVICE_TAKEN with the process that holds it
 */
export function holdDevice(identity: string, device: string): () => void {
  makePrivateFolder(locksFolder());
  const path = lockFile(identity);
  const descriptor = openSync(path, 'a+', 0o600);
  const flock = koffi.load('libc.so.6').func('int flock(int fd, int operation)');
  if (flock(descriptor, exclusively_or_not) !== 0) {
    const holder = readFileSync(path, 'utf8').trim();
    closeSync(descriptor);
    throw new HpcserveError('E_DEVICE_TAKEN', {
      what: `${device} is computed on by another device worker of yours`,
      because: `process ${holder || 'unknown'} holds ${path}`,
      details: { device, pid: Number(holder) },
    });
  }
  ftruncateSync(descriptor);
  writeSync(descriptor, `${process.pid}\n`);
  return () => closeSync(descriptor);
}

/** The worker that holds a device of this node, as far as it is this user's. @returns its process */
export function deviceHolder(identity: string): number | undefined {
  return lockHolder(lockFile(identity));
}

function locksFolder(): string {
  return join(tmpdir(), `hpcserve-devices-${process.getuid?.() ?? 0}`);
}

function lockFile(identity: string): string {
  return join(locksFolder(), `${identity.replace(/[^\w.-]+/g, '_').slice(0, 120)}.lock`);
}
