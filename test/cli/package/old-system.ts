/** The system of another Debian, in which a test runs programs. */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { packageRoot } from '../../../host/package-root.ts';
import { findProgram, type Installation, installPrograms, pathWithSbin } from '../../cluster/install.ts';

const suite = 'bullseye';
const systems = join(packageRoot, 'build/systems');
const files = join(systems, suite);
const install_timeout_ms = 300_000;

/** What it takes to have one. */
export async function oldSystemTools(): Promise<Installation> {
  if (process.getuid?.() !== 0) return { ready: false, missing: 'root, for debootstrap and mounts' };
  return installPrograms(['debootstrap', 'unshare', 'nsenter'], ['debootstrap', 'util-linux']);
}

export interface Ended {
  code: number;
  stdout: string;
  stderr: string;
}

/**
 * A system of 2021 to run programs on: the files of Debian 11, whose C library is 2.31, as that of SLES 15 is. Programs
 * have mounts and process numbers of their own, so that all of them end with it and nothing stays mounted:
 *
 *     this machine: kernel, network
 *       └─ build/systems/bullseye   as /
 *            ├─ /opt/hpcserve       the archive, unpacked
 *            ├─ /home               a folder of the test
 *            └─ /dev, /proc, /tmp
 */
export class OldSystem implements AsyncDisposable {
  readonly #holder: ChildProcess;
  /** A process in it, by its number on this machine. */
  readonly #pid: string;

  private constructor(holder: ChildProcess, pid: string) {
    this.#holder = holder;
    this.#pid = pid;
  }

  static async start(archive: string, home: string): Promise<OldSystem> {
    await ensureFiles();
    // The first process waits for whatever is left without a parent, as init does, and says its number once inside.
    const script = `set -e
      read -r pid rest < /proc/self/stat
      mount --rbind /dev "$1/dev"
      mount -t tmpfs tmpfs "$1/tmp"
      mount --bind "$2" "$1/opt/hpcserve"
      mount --bind "$3" "$1/home"
      mount -t proc proc "$1/proc"
      exec chroot "$1" /bin/sh -c 'echo "$1"; while sleep 1; do :; done' sh "$pid"`;
    const holder = spawn(
      'unshare',
      ['--mount', '--pid', '--fork', '--kill-child', '--', 'sh', '-c', script, 'sh', files, archive, home],
      { stdio: ['ignore', 'pipe', 'inherit'] },
    );
    const pid = await new Promise<string>((resolve, reject) => {
      createInterface({ input: holder.stdout! }).once('line', resolve);
      holder.once('error', reject);
      holder.once('exit', (code) => reject(new Error(`the system ended at its start with ${code}`)));
    });
    return new OldSystem(holder, pid);
  }

  /** Runs a program as root of that system, in /home and with nothing of this machine in its environment. */
  async run(argv: readonly string[], timeout_ms = 90_000): Promise<Ended> {
    const enter = ['--target', this.#pid, '--mount', '--pid', '--root', '--wd', '--'];
    const inHome = ['/bin/sh', '-c', 'cd /home && exec "$@"', 'sh'];
    const env = { PATH: '/usr/bin:/bin', HOME: '/home', TMPDIR: '/tmp' };
    try {
      const done = await promisify(execFile)(findProgram('nsenter')!, [...enter, ...inHome, ...argv], {
        env,
        timeout: timeout_ms,
      });
      return { code: 0, ...done };
    } catch (error) {
      const { code, stdout, stderr } = error as Error & Partial<Ended>;
      if (typeof code !== 'number') throw error;
      return { code, stdout: stdout ?? '', stderr: stderr ?? '' };
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const ended = new Promise((resolve) => this.#holder.once('exit', resolve));
    this.#holder.kill('SIGKILL');
    await ended;
  }
}

/** Packages are unpacked and their scripts left alone: what is needed is the C library, a shell and its tools. */
async function ensureFiles(): Promise<void> {
  if (existsSync(files)) return;
  mkdirSync(systems, { recursive: true });
  const partial = mkdtempSync(join(systems, `.${suite}-`));
  try {
    await promisify(execFile)(
      findProgram('debootstrap')!,
      ['--foreign', '--variant=minbase', suite, partial],
      { env: { ...process.env, PATH: pathWithSbin() }, timeout: install_timeout_ms, maxBuffer: 1 << 26 },
    );
    // Where debootstrap finds itself in a container, its /proc is a link to the one outside.
    rmSync(join(partial, 'proc'), { recursive: true, force: true });
    for (const folder of ['proc', 'opt/hpcserve']) mkdirSync(join(partial, folder), { recursive: true });
    writeFileSync(join(partial, 'etc/passwd'), 'root:x:0:0:root:/home:/bin/sh\n');
    writeFileSync(join(partial, 'etc/group'), 'root:x:0:\n');
    rmSync(join(partial, 'var/cache/apt'), { recursive: true, force: true });
    renameSync(partial, files);
  } finally {
    rmSync(partial, { recursive: true, force: true });
  }
}
