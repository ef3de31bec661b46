/**
 * Apptainer as Debian's unstable release has it, without set-user-ID: for an ordinary user by user namespaces. It is
 * taken out of its packages and told where its libraries are, and finds all else from where it lies itself.
 */
import { cpSync, mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { bindToLibraries, libraryFolder, unpackDebian } from '../cluster/debian-folder.ts';
import { installPrograms } from '../cluster/install.ts';
import { apptainerIn } from './environments.ts';
import { madeOnce, NotHere, run } from './making.ts';

const suite = 'sid';
const packages = ['apptainer'];

export async function makeApptainer(say: (line: string) => void): Promise<void> {
  await madeOnce('apptainer', JSON.stringify({ suite, packages }), say, async (folder) => {
    if (process.getuid?.() !== 0) throw new NotHere('debootstrap makes its folder as root: run this as root');
    const tools = ['debootstrap', 'patchelf'];
    const installed = await installPrograms(tools, tools, say);
    if (!installed.ready) throw new NotHere(installed.missing);
    say(`Debian ${suite} with ${packages.join(', ')}`);
    const root = join(folder, 'root');
    await unpackDebian(suite, packages, root);
    for (const program of [apptainerIn(folder), join(root, libraryFolder(), 'apptainer/bin/starter')])
      await bindToLibraries(program, root);
    const usr = join(root, 'usr');
    cpSync(join(root, 'etc/apptainer'), join(usr, 'etc/apptainer'), { recursive: true });
    mkdirSync(join(usr, 'var/lib/apptainer/mnt/session'), { recursive: true });
    // Its second program takes usr/lib for what is usr to the first.
    for (const name of ['etc', 'var']) symlinkSync(`../${name}`, join(usr, 'lib', name));
    say(await run([apptainerIn(folder), '--version']));
  });
}
