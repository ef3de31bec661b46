/**
 * A lease on a file that is read through a mapping, fcntl(2) F_SETLEASE. Reading mapped bytes that were cut off the
 * file meanwhile ends the process with SIGBUS; while a lease is held, whoever opens the file for writing or cuts
 * it off waits, for as long as /proc/sys/fs/lease-break-time says (45 s unless the site changed it).
 */
import { constants } from 'node:os';
import koffi from 'koffi';

/** From <fcntl.h>. */
const set_lease = 1024;
const get_lease = 1025;
const set_signal = 10;
const read_lock = 0;
const unlocked = 2;

type Control = (descriptor: number, command: number, argument: number) => number;
let fcntl: Control | undefined;

function control(): Control {
  fcntl ??= koffi.load('libc.so.6').func('int fcntl(int fd, int command, int argument)') as Control;
  return fcntl;
}

/**
 * Takes a lease on an open file. It ends with `releaseLease`, or when the descriptor is closed.
 * @returns false where there is none to be had: another's file, a file that is open for writing, a network
 *   filesystem. Then the file must not be read through a mapping.
 */
export function takeLease(descriptor: number): boolean {
  // The signal that tells of a break would end the process by default; this one is ignored by default.
  if (control()(descriptor, set_signal, constants.signals.SIGURG) !== 0) return false;
  return control()(descriptor, set_lease, read_lock) === 0;
}

/** Whether the lease stands and nobody waits for it to end. */
export function leaseHolds(descriptor: number): boolean {
  return control()(descriptor, get_lease, 0) === read_lock;
}

export function releaseLease(descriptor: number): void {
  control()(descriptor, set_lease, unlocked);
}
