/** The programs that suites need beside Node, and how they come onto the machine. */
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';

interface Program {
  name: string;
  debian_package: string;
  needed_for: string;
}

export interface MissingProgram {
  name: string;
  needed_for: string;
  advice: string;
}

const programs: Program[] = [
  { name: 'slurmctld', debian_package: 'slurmctld', needed_for: 'the test cluster' },
  { name: 'slurmd', debian_package: 'slurmd', needed_for: 'the test cluster' },
  { name: 'sbatch', debian_package: 'slurm-client', needed_for: 'the test cluster' },
  { name: 'munged', debian_package: 'munge', needed_for: 'the test cluster' },
  { name: 'shellcheck', debian_package: 'shellcheck', needed_for: 'checking the batch scripts' },
];

/** Where a program stands; sbin folders are searched too, since a user's PATH often leaves them out. */
export function findProgram(name: string): string | undefined {
  const folders = [...(process.env.PATH ?? '').split(delimiter), '/usr/sbin', '/usr/local/sbin', '/sbin'];
  return folders.map((folder) => join(folder, name)).find((path) => existsSync(path));
}

/** Installs what is missing where that is possible (root on Debian), and returns what still is. */
export function ensureTestPrograms(): MissingProgram[] {
  let absent = programs.filter((program) => findProgram(program.name) === undefined);
  if (absent.length > 0 && process.getuid?.() === 0 && existsSync('/etc/debian_version')) {
    const packages = [...new Set(absent.map((program) => program.debian_package))];
    console.error(`installing ${packages.join(', ')} (apt-get) …`);
    const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' };
    spawnSync('apt-get', ['update', '-q'], { stdio: ['ignore', 'ignore', 2], env });
    // Debian starts daemons on installation; the private test cluster must not meet a system one.
    spawnSync('apt-get', ['install', '-y', '-q', '--no-install-recommends', ...packages], {
      stdio: ['ignore', 'ignore', 2],
      env: { ...env, RUNLEVEL: '1' },
    });
    absent = programs.filter((program) => findProgram(program.name) === undefined);
  }
  return absent.map((program) => ({
    name: program.name,
    needed_for: program.needed_for,
    advice: `install ${program.debian_package} (as root on Debian npm test does it itself)`,
  }));
}
