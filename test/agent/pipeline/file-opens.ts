import { closeSync, readSync } from 'node:fs';
import { constants } from 'node:os';
import koffi from 'koffi';

const libc = koffi.load('libc.so.6');
const inotify_init1 = libc.func('int inotify_init1(int flags)');
const inotify_add_watch = libc.func('int inotify_add_watch(int fd, const char *path, uint32_t mask)');

const nonblock = 0o4000;
const masks = { open: 0x20, close: 0x18 };
/** Of an event of a file that is watched itself: watch, mask, cookie, and no name. */
const event_bytes = 16;

/** Tells of a file when any process opens it. */
export class FileOpens {
  readonly #descriptor: number;

  constructor(path: string) {
    this.#descriptor = inotify_init1(nonblock);
    // The kernel joins equal events that follow each other: those of closing keep opens apart.
    if (inotify_add_watch(this.#descriptor, path, masks.open | masks.close) < 0)
      throw new Error(`${path} is not watched: errno ${koffi.errno()}`);
  }

  /** How often it was opened since this was last asked. */
  take(): number {
    const events = Buffer.alloc(256 * event_bytes);
    let count = 0;
    for (let bytes = this.#read(events); bytes > 0; bytes = this.#read(events))
      for (let at = 0; at < bytes; at += event_bytes)
        if ((events.readUInt32LE(at + 4) & masks.open) !== 0) count++;
    return count;
  }

  close(): void {
    closeSync(this.#descriptor);
  }

  #read(into: Buffer): number {
    try {
      return readSync(this.#descriptor, into);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).errno === -constants.errno.EAGAIN) return 0;
      throw error;
    }
  }
}
