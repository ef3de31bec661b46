/**
 * Puts the programs into few files: Node spends most of a short command, and a second of an agent's or gateway's start,
 * on finding and reading hundreds of modules. `node dist/.ci/bundle.js [FOLDER]`, into dist/bundle without one. What
 * people type comes in parts, since most commands need few of them; what runs for long comes in one file each, since
 * the build may replace a part before it is loaded.
 */
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { join, resolve, sep } from 'node:path';
import { type OutputOptions, type Plugin, type RolldownOptions, rolldown } from 'rolldown';
import { packageRoot } from '../host/package-root.ts';

const builtin = /^node:/;
const bare = /^[^./]/;
/** Plain JavaScript that nearly every command loads. All else stays a package, addons among it. */
const inlinedInCommands = ['commander', 'eta', 'yaml', 'zod'];
/** Addons, which are files of their own, and what is found by its place; all else that runs for long is inlined. */
const notInlinedInPrograms = /^(better-sqlite3|koffi|node-pty|ssh2)$/;
/** By the names that their main.ts gives them (`runProgram` in host/programs.ts). */
const programs: Readonly<Record<string, string>> = {
  agent: 'agent/run-agent.js',
  'device-worker': 'agent/device-worker/run-device-worker.js',
  gateway: 'gateway/run-gateway.js',
  keeper: 'control/keeper/run-keeper.js',
};

const compiled = join(packageRoot, 'dist');
/** The compiler's source maps, so that those of the bundle lead to the sources. */
const sourceMaps: Plugin = {
  name: 'source-maps',
  load: (id) =>
    id.startsWith(`${compiled}${sep}`)
      ? { code: readFileSync(id, 'utf8'), map: readFileSync(`${id}.map`, 'utf8') }
      : null,
};

const target = resolve(process.argv[2] ?? join(compiled, 'bundle'));
// Beside the target and then in its place: a command that starts meanwhile finds the old files or the new ones.
const fresh = `${target}.${process.pid}`;
try {
  mkdirSync(fresh, { recursive: true });
  await write(
    {
      input: join(compiled, 'cli/main.js'),
      external: (id) => builtin.test(id) || (bare.test(id) && !inlinedInCommands.includes(id)),
    },
    { dir: fresh },
  );
  for (const [name, entry] of Object.entries(programs))
    await write(
      {
        input: join(compiled, entry),
        external: (id) => builtin.test(id) || notInlinedInPrograms.test(id),
      },
      { file: join(fresh, `${name}.js`), codeSplitting: false },
    );
  const old = `${fresh}.old`;
  if (existsSync(target)) renameSync(target, old);
  renameSync(fresh, target);
  rmSync(old, { recursive: true, force: true });
} finally {
  rmSync(fresh, { recursive: true, force: true });
}

async function write(input: RolldownOptions, output: OutputOptions): Promise<void> {
  const bundle = await rolldown({
    ...input,
    platform: 'node',
    plugins: [sourceMaps],
    onLog: (level, log) => {
      if (level === 'warn') throw new Error(`${log.code ?? 'warning'}: ${log.message}`);
    },
  });
  await bundle.write({ format: 'esm', sourcemap: true, ...output });
  await bundle.close();
}
