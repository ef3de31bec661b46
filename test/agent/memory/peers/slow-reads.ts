import {
  existsSync,
  mkdirSync,
  readFileSync,
  realpathSync,
  rmdirSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';

const v1 = '/sys/fs/cgroup/blkio';
const v2 = '/sys/fs/cgroup';

/** A disk that is slow for some processes: Linux's block I/O controller holds their reads to a rate. */
export class SlowReads {
  /** Processes whose ids are written to `cgroup.procs` here, and those that they start, read slowly. */
  readonly folder: string;

  private constructor(folder: string) {
    this.folder = folder;
  }

  /** @returns undefined where this machine, or this user, cannot */
  static from(file: string, bytes_per_s: number): SlowReads | undefined {
    const disk = diskOf(file);
    if (disk === undefined) return undefined;
    const base = existsSync(join(v1, 'cgroup.procs')) ? v1 : v2;
    const folder = join(base, `hpcserve-slow-${process.pid}`);
    try {
      mkdirSync(folder, { recursive: true });
      if (base === v1)
        writeFileSync(join(folder, 'blkio.throttle.read_bps_device'), `${disk} ${bytes_per_s}`);
      else writeFileSync(join(folder, 'io.max'), `${disk} rbps=${bytes_per_s}`);
      return new SlowReads(folder);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === 'EACCES' || code === 'EPERM' || code === 'EROFS' || code === 'ENOENT') return undefined;
      throw error;
    }
  }

  /** Every process of it must have ended. */
  [Symbol.dispose](): void {
    rmdirSync(this.folder);
  }
}

/** MAJOR:MINOR of the whole disk below a file; undefined where it lies on none. */
function diskOf(file: string): string | undefined {
  const { dev } = statSync(file);
  const major = ((dev >> 8) & 0xfff) | 0;
  const minor = (dev & 0xff) | ((dev >> 12) & 0xfff00);
  const entry = `/sys/dev/block/${major}:${minor}`;
  if (!existsSync(entry)) return undefined;
  const device = realpathSync(entry);
  const disk = existsSync(join(device, 'partition')) ? dirname(device) : device;
  return readFileSync(join(disk, 'dev'), 'utf8').trim();
}
