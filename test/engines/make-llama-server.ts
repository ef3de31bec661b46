/**
 * llama.cpp's server as Debian's unstable release has it, with the libraries that it is linked to, in a folder made by
 * debootstrap. It is run outside of that folder, through its own loader: inside a chroot it could not bind the socket
 * of an agent.
 */
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { findProgram, installPrograms } from '../cluster/install.ts';
import { madeOnce, NotHere, run } from './making.ts';

const suite = 'sid';
const packages = ['llama.cpp'];
const triples: Readonly<Record<string, string>> = { x64: 'x86_64-linux-gnu', arm64: 'aarch64-linux-gnu' };

export async function makeLlamaServer(say: (line: string) => void): Promise<void> {
  await madeOnce('llama-server', JSON.stringify({ suite, packages }), say, async (folder) => {
    if (process.getuid?.() !== 0) throw new NotHere('debootstrap makes its folder as root: run this as root');
    const installed = await installPrograms(['debootstrap'], ['debootstrap'], say);
    if (!installed.ready) throw new NotHere(installed.missing);
    const root = join(folder, 'root');
    say(`Debian ${suite} with ${packages.join(', ')}`);
    const mirror = await aptMirror();
    await run([
      findProgram('debootstrap')!,
      '--variant=minbase',
      `--include=${packages.join(',')}`,
      suite,
      root,
      ...(mirror === undefined ? [] : [mirror]),
    ]);
    const command = commandIn(root);
    await run([...command, '--version']);
    mkdirSync(join(folder, 'bin'));
    const [words, library] = [command.map(quoted).join(' '), quoted(backendIn(root))];
    const script = `#!/bin/sh\nexport GGML_BACKEND_PATH=${library}\nexec ${words} "$@"\n`;
    writeFileSync(join(folder, 'bin/llama-server'), script, { mode: 0o755 });
  });
}

/** Where this machine's apt has its packages from; undefined: debootstrap knows. */
async function aptMirror(): Promise<string | undefined> {
  const uris = await run(['apt-get', 'indextargets', '--format', '$(REPO_URI)', 'Created-By: Packages']);
  return uris
    .split('\n')
    .find((uri) => /\/debian\/?$/.test(uri))
    ?.replace(/\/$/, '');
}

const quoted = (word: string): string => `'${word.replaceAll("'", "'\\''")}'`;

/** It looks for its CPU library where the folder would be the root: one that any CPU of the kind can run is named. */
function backendIn(root: string): string {
  const ggml = join(root, 'usr/lib', triples[process.arch] ?? '', 'ggml');
  const found = existsSync(ggml) ? readdirSync(ggml, { recursive: true, encoding: 'utf8' }) : [];
  const library = ['libggml-cpu-x64.so', 'libggml-cpu.so'].flatMap((name) =>
    found.filter((path) => path.endsWith(name)),
  )[0];
  const any = library ?? found.find((path) => /libggml-cpu.*\.so$/.test(path));
  if (any === undefined) throw new NotHere(`no CPU library of ggml in ${ggml}`);
  return join(ggml, any);
}

function commandIn(root: string): string[] {
  const libraries = join(root, 'usr/lib', triples[process.arch] ?? '');
  const loader = existsSync(libraries)
    ? readdirSync(libraries).find((name) => /^ld-linux-.*\.so\.\d$/.test(name))
    : undefined;
  if (loader === undefined) throw new NotHere(`no loader of ${process.arch} in ${libraries}`);
  const folders = [libraries, ...subfolders(libraries)].join(':');
  return [join(libraries, loader), '--library-path', folders, join(root, 'usr/bin/llama-server')];
}

/** Where Debian keeps libraries of one program or of several variants. */
function subfolders(libraries: string): string[] {
  return ['llama', 'ggml', 'blas', 'lapack', 'libggml']
    .map((name) => join(libraries, name))
    .filter((path) => existsSync(path));
}
