import { spawnSync } from 'node:child_process';
import {
  chownSync,
  closeSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  rmSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import { isOutOfRoom } from '../../spec/errors/system-error.ts';
import { findProgram, installPrograms } from './install.ts';

/** Sparse: what is not written takes no room. */
const disk_bytes = 256 * 1024 ** 2;

/**
 * A folder whose owner has so much room and no more: a subvolume of a btrfs filesystem in a file, with a limit on its
 * quota group. What does not fit fails with EDQUOT, for root as well.
 */
export class QuotaFolder {
  /** The folder, 0700; all who use the machine may pass through those above it. */
  readonly path: string;
  readonly #base: string;
  readonly #mount: string;
  #fillers = 0;

  private constructor(base: string) {
    this.#base = base;
    this.#mount = join(base, 'mount');
    this.path = join(this.#mount, 'home');
  }

  /** @returns in words why there can be none on this machine, if so */
  static async make(quota_bytes: number, owner: { uid: number; gid: number }): Promise<QuotaFolder | string> {
    if (process.getuid?.() !== 0) return 'root is needed to mount a filesystem';
    const ready = await installPrograms(['mkfs.btrfs', 'btrfs'], ['btrfs-progs']);
    if (!ready.ready) return ready.missing;
    const folder = new QuotaFolder(mkdtempSync('/tmp/hpcserve-quota-'));
    const refused = folder.#mountDisk() ?? folder.#limit(quota_bytes);
    if (refused !== undefined) {
      folder.dispose();
      return refused;
    }
    chownSync(folder.path, owner.uid, owner.gid);
    return folder;
  }

  #mountDisk(): string | undefined {
    const disk = join(this.#base, 'disk');
    writeFileSync(disk, '', { mode: 0o600 });
    truncateSync(disk, disk_bytes);
    mkdirSync(this.#mount);
    return (
      run('chmod', '755', this.#base) ??
      run('mkfs.btrfs', '--quiet', '--mixed', disk) ??
      run('mount', '-t', 'btrfs', '-o', 'loop', disk, this.#mount)
    );
  }

  #limit(quota_bytes: number): string | undefined {
    return (
      run('btrfs', 'quota', 'enable', this.#mount) ??
      run('btrfs', 'subvolume', 'create', this.path) ??
      run('btrfs', 'qgroup', 'limit', String(quota_bytes), this.path) ??
      run('chmod', '700', this.path)
    );
  }

  /** Takes what room there is, to the last byte. */
  fill(): void {
    // What others just wrote counts only once it is on the disk.
    this.#sync();
    for (const block_bytes of [256 * 1024, 4096, 1]) {
      try {
        const file = openSync(join(this.path, `.filler-${this.#fillers++}`), 'w');
        try {
          for (const block = Buffer.alloc(block_bytes); ; ) writeSync(file, block);
        } finally {
          closeSync(file);
        }
      } catch (error) {
        if (!isOutOfRoom(error)) throw error;
      }
    }
    this.#sync();
  }

  /** Gives the room back that `fill` took. */
  free(): void {
    for (let index = 0; index < this.#fillers; index++)
      rmSync(join(this.path, `.filler-${index}`), { force: true });
    this.#sync();
  }

  /** Nobody may be in it any more. */
  dispose(): void {
    run('umount', this.#mount);
    rmSync(this.#base, { recursive: true, force: true });
  }

  #sync(): void {
    const refused = run('btrfs', 'filesystem', 'sync', this.#mount);
    if (refused !== undefined) throw new Error(refused);
  }
}

/** What it said where it failed. */
function run(program: string, ...args: string[]): string | undefined {
  const { status, stderr, error } = spawnSync(findProgram(program) ?? program, args, { encoding: 'utf8' });
  return status === 0 ? undefined : `${program}: ${(stderr || error?.message) ?? status}`;
}
