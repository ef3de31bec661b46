/**
 * Puts what people type into few files: Node spends most of a short command on finding and reading some 200 modules,
 * half of them zod's. `node dist/.ci/bundle.js [FOLDER]`, into dist/bundle without one. Agents, gateways and keepers,
 * which start once and live long, run what the compiler wrote, of which this is made.
 */
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { join, resolve, sep } from 'node:path';
import { type Plugin, rolldown } from 'rolldown';
import { packageRoot } from '../host/package-root.ts';

/** Plain JavaScript that nearly every command loads. All else stays a package, addons among it. */
const inlined = ['commander', 'eta', 'yaml', 'zod'];
const builtin = /^node:/;
const bare = /^[^./]/;

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
  const bundle = await rolldown({
    input: join(compiled, 'cli/main.js'),
    platform: 'node',
    plugins: [sourceMaps],
    external: (id) => builtin.test(id) || (bare.test(id) && !inlined.includes(id)),
    onLog: (level, log) => {
      if (level === 'warn') throw new Error(`${log.code ?? 'warning'}: ${log.message}`);
    },
  });
  mkdirSync(fresh, { recursive: true });
  await bundle.write({ dir: fresh, format: 'esm', sourcemap: true });
  await bundle.close();
  const old = `${fresh}.old`;
  if (existsSync(target)) renameSync(target, old);
  renameSync(fresh, target);
  rmSync(old, { recursive: true, force: true });
} finally {
  rmSync(fresh, { recursive: true, force: true });
}
