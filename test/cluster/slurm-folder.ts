/**
 * Slurm of another Debian, in a folder of its own. Its programs are told to take their loader and libraries from that
 * folder; otherwise they see this machine as it is, and so does what jobs start:
 *
 *     slurmctld, slurmd, sbatch …   loader, libraries, plugins: build/slurm/24.11/
 *       └─ slurmstepd               the same
 *            └─ job: bash, node …   those of this machine
 *
 * No chroot, whose jobs would have to run this machine's programs on another C library.
 */
import { execFileSync } from 'node:child_process';
import {
  existsSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  renameSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { basename, join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { bindToLibraries, libraryFolder, unpack_timeout_ms, unpackDebian } from './debian-folder.ts';
import { findProgram, type Installation, installPrograms } from './install.ts';
import { withLock } from './lock.ts';

/** Releases that the test cluster can run, and the Debian that each is taken from. */
const debianSuites = { '20.11': 'bullseye', '22.05': 'bookworm', '24.11': 'trixie', '26.05': 'sid' } as const;

export type SlurmRelease = keyof typeof debianSuites;
export const slurmReleases = Object.keys(debianSuites) as SlurmRelease[];

/** @throws Error that names the releases there are */
export function slurmRelease(text: string): SlurmRelease {
  const known = slurmReleases.find((release) => release === text);
  if (known === undefined)
    throw new Error(`the test cluster cannot run Slurm ${text}; it can run ${slurmReleases.join(', ')}`);
  return known;
}

/** Whether a version (`22.05.8`) is of `release` (`21.08`) or of a later one. */
export function atLeastRelease(version: string, release: string): boolean {
  // Years and months have two digits each.
  return version.slice(0, 5) >= release;
}

/** The Debian that a release is taken from. */
export function debianSuite(release: SlurmRelease): string {
  return debianSuites[release];
}

const packages = ['slurmctld', 'slurmd', 'slurm-client', 'slurmdbd'];
/** In 20.11 one package has all plugins. */
const databasePlugin = 'slurm-wlm-mysql-plugin';
const daemons = ['slurmctld', 'slurmd', 'slurmstepd', 'slurmdbd'];
const commands = [
  ...['sacct', 'sacctmgr', 'salloc', 'sattach', 'sbatch', 'sbcast', 'scancel', 'scontrol', 'sdiag', 'sinfo'],
  ...['sprio', 'squeue', 'sreport', 'srun', 'sshare', 'sstat', 'strigger'],
];

/** Which Slurm a cluster runs. */
export interface SlurmPrograms {
  /** Absent: that of this machine. */
  release?: SlurmRelease | undefined;
  /** As its controller says: `22.05.8`. */
  version: string;
  /** A program of Slurm, or else of this machine. */
  find(program: string): string | undefined;
  /** Folder for PATH that has Slurm's commands and, where it is not this machine's, nothing else. */
  commands: string;
  /** Folder of its plugins where it is not the one that was compiled in. */
  plugins?: string;
  /** slurmstepd, likewise. */
  step_daemon?: string;
}

/** What was installed: of `release`, or of this machine. @throws Error where it is not there */
export function slurmPrograms(release?: SlurmRelease): SlurmPrograms {
  if (release === undefined) {
    const controller = findProgram('slurmctld');
    if (controller === undefined) throw new Error('no slurmctld on this machine');
    const folder = (findProgram('sbatch') ?? '/usr/bin/sbatch').replace(/\/[^/]*$/, '');
    return { version: versionOf(controller), find: findProgram, commands: folder };
  }
  const root = folderOf(release);
  if (!isReady(release))
    throw new Error(`Slurm ${release} is not installed: npm run cluster -- up --slurm ${release} does it`);
  const sbin = join(root, 'usr/sbin');
  const own = join(root, 'commands');
  return {
    release,
    version: versionOf(join(sbin, 'slurmctld')),
    find: (program) =>
      [join(sbin, program), join(own, program)].find(
        (path) => (daemons.includes(program) || commands.includes(program)) && existsSync(path),
      ) ?? findProgram(program),
    commands: own,
    plugins: join(root, libraryFolder(), 'slurm-wlm'),
    step_daemon: join(sbin, 'slurmstepd'),
  };
}

/** Installs a release where that is possible: as root, with debootstrap and patchelf of Debian. */
export async function ensureSlurmRelease(
  release: SlurmRelease,
  say: (line: string) => void = () => {},
): Promise<Installation> {
  if (isReady(release)) return { ready: true, installed: false };
  const suite = debianSuites[release];
  const from = `Slurm ${release}, which is taken from Debian ${suite}`;
  if (process.getuid?.() !== 0) return { ready: false, missing: `${from} by debootstrap: that needs root` };
  const tools = await installPrograms(['debootstrap', 'patchelf'], ['debootstrap', 'patchelf'], say);
  if (!tools.ready) return { ready: false, missing: `${from}: ${tools.missing}` };
  mkdirSync(join(packageRoot, 'build/slurm'), { recursive: true });
  return withLock(`${folderOf(release)}.lock`, unpack_timeout_ms, async () => {
    if (isReady(release)) return { ready: true, installed: false };
    say(`installing ${from} into ${folderOf(release)}`);
    try {
      await unpack(release);
      await bindToFolder(release);
    } catch (error) {
      const { stderr, stdout, message } = error as Error & { stderr?: string; stdout?: string };
      const words = [stdout, stderr].join('\n').trim().split('\n').slice(-5).join('\n');
      return { ready: false, missing: `${from}: ${message.split('\n', 1)[0]}\n${words}`.trim() };
    }
    writeFileSync(stamp(release), folderOf(release));
    return { ready: true, installed: true };
  });
}

function folderOf(release: SlurmRelease): string {
  return join(packageRoot, 'build/slurm', release);
}

function stamp(release: SlurmRelease): string {
  return join(folderOf(release), 'ready');
}

/** Its programs name the folder: one that was moved is made anew. */
function isReady(release: SlurmRelease): boolean {
  return existsSync(stamp(release)) && readFileSync(stamp(release), 'utf8') === folderOf(release);
}

function unpack(release: SlurmRelease): Promise<void> {
  const included = release === '20.11' ? packages : [...packages, databasePlugin];
  return unpackDebian(debianSuites[release], included, folderOf(release));
}

async function bindToFolder(release: SlurmRelease): Promise<void> {
  const root = folderOf(release);
  const own = join(root, 'commands');
  mkdirSync(own);
  const plugins = join(root, libraryFolder(), 'slurm-wlm');
  // Of what Debian has in two variants, an alternative links to one, once its package is set up.
  for (const name of daemons) {
    const variant = join(root, 'usr/sbin', `${name}-wlm`);
    if (existsSync(variant)) renameSync(variant, join(root, 'usr/sbin', name));
  }
  const programs = [
    ...daemons.map((name) => join(root, 'usr/sbin', name)),
    ...commands.map((name) => join(root, 'usr/bin', name)),
  ].filter((path) => existsSync(path) && lstatSync(path).isFile());
  for (const program of programs) {
    await bindToLibraries(program, root, [plugins]);
    if (commands.includes(basename(program))) symlinkSync(program, join(own, basename(program)));
  }
  const found = versionOf(join(root, 'usr/sbin/slurmctld'));
  if (!found.startsWith(`${release}.`)) throw new Error(`Debian ${debianSuites[release]} has Slurm ${found}`);
}

function versionOf(controller: string): string {
  const words = execFileSync(controller, ['-V'], { encoding: 'utf8' });
  const found = /(\d+\.\d+\.\d+)/.exec(words)?.[1];
  if (found === undefined) throw new Error(`${controller} -V printed ${JSON.stringify(words)}`);
  return found;
}
