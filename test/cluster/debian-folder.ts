/**
 * Programs of another Debian, in a folder of its own, that run on this machine as it is: unpacked, and told to take
 * their loader and libraries from that folder.
 */
import { execFile, spawn } from 'node:child_process';
import { readdirSync, rmSync } from 'node:fs';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';
import { findProgram, pathWithSbin } from './install.ts';

const run = promisify(execFile);

export const unpack_timeout_ms = 900_000;

/** Nothing of the other Debian is run here: packages are checked and unpacked, and their scripts left alone. */
export async function unpackDebian(suite: string, packages: readonly string[], root: string): Promise<void> {
  rmSync(root, { recursive: true, force: true });
  await run(
    findProgram('debootstrap')!,
    ['--foreign', '--variant=minbase', `--include=${packages.join(',')}`, suite, root],
    {
      env: { ...process.env, PATH: pathWithSbin() },
      timeout: unpack_timeout_ms,
      maxBuffer: 64 * 1024 * 1024,
    },
  );
  const archives = join(root, 'var/cache/apt/archives');
  for (const name of readdirSync(archives).filter((file) => file.endsWith('.deb')))
    await unpackArchive(join(archives, name), root);
  rmSync(archives, { recursive: true, force: true });
}

/**
 * Has a program of such a folder take its loader and libraries from there.
 * @param first folders that are searched before those of the system
 */
export async function bindToLibraries(
  program: string,
  root: string,
  first: readonly string[] = [],
): Promise<void> {
  const libraries = [libraryFolder(), libraryFolder().replace('usr/', '')].map((path) => join(root, path));
  const { stdout } = await run('patchelf', ['--print-interpreter', program]);
  // In bullseye /lib64 links to an absolute path, which would be this machine's.
  const loader = join(libraries[1]!, basename(stdout.trim()));
  const search = [...first, ...libraries].join(':');
  // DT_RPATH goes for plugins, too, and for what they need.
  await run('patchelf', ['--set-interpreter', loader, '--force-rpath', '--set-rpath', search, program]);
}

/** Where Debian keeps libraries of this machine's kind. */
export function libraryFolder(): string {
  return `usr/lib/${process.arch === 'arm64' ? 'aarch64' : 'x86_64'}-linux-gnu`;
}

/** As `dpkg-deb --extract`, which would put a folder in the place of the link /lib. */
function unpackArchive(archive: string, root: string): Promise<void> {
  const reader = spawn('dpkg-deb', ['--fsys-tarfile', archive], { stdio: ['ignore', 'pipe', 'inherit'] });
  const writer = spawn('tar', ['--extract', '--keep-directory-symlink', `--directory=${root}`], {
    stdio: ['pipe', 'inherit', 'inherit'],
  });
  reader.stdout.pipe(writer.stdin);
  return new Promise((resolve, reject) => {
    reader.once('error', reject);
    writer.once('error', reject);
    writer.once('close', (code) =>
      code === 0 ? resolve() : reject(new Error(`tar could not unpack ${basename(archive)}: ${code}`)),
    );
  });
}
