/**
 * `npm run link [-- FOLDER]`: puts the command of this clone where a shell finds it, `~/.local/bin` by default, and
 * says what to add to the PATH where that folder is not on it.
 */
import { lstatSync, mkdirSync, realpathSync, rmSync, symlinkSync } from 'node:fs';
import { basename, delimiter, join, resolve } from 'node:path';
import { packageRoot } from '../host/package-root.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { expandSitePath } from '../spec/site-paths.ts';

const command = join(packageRoot, 'cli/hpcserve.mjs');

try {
  main(process.argv.slice(2));
} catch (thrown) {
  const error = HpcserveError.from(thrown);
  process.stderr.write(`${error.toText()}\n`);
  process.exit(error.exit_code);
}

function main([folder = expandSitePath('~/.local/bin', process.env)]: readonly string[]): void {
  const place = resolve(folder);
  const link = join(place, 'hpcserve');
  mkdirSync(place, { recursive: true });
  makeWay(link);
  symlinkSync(command, link);
  process.stdout.write(`${link} is ${command}\n`);
  const isOnPath = (process.env.PATH ?? '').split(delimiter).some((each) => resolve(each) === place);
  if (isOnPath) return;
  process.stdout.write(
    `It is not on the PATH of this shell yet. Type this, and add it to ~/.profile:\n\n  export PATH=${quoted(place)}:"$PATH"\n`,
  );
}

/** A link to an hpcserve of another place gives way. @throws E_FILE_EXISTS for what is none */
function makeWay(link: string): void {
  const there = lstatSync(link, { throwIfNoEntry: false });
  if (there === undefined) return;
  if (!there.isSymbolicLink() || !leadsToHpcserve(link))
    throw new HpcserveError('E_FILE_EXISTS', {
      what: `${link} is there already, and is no link to an hpcserve`,
      try: [`remove it`, 'name another folder: npm run link -- FOLDER'],
    });
  rmSync(link);
}

function leadsToHpcserve(link: string): boolean {
  try {
    return /^hpcserve(\.mjs)?$/.test(basename(realpathSync(link)));
  } catch {
    // It leads nowhere: the clone or archive was removed.
    return true;
  }
}

function quoted(path: string): string {
  return /^[\w@%+=:,./-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`;
}
