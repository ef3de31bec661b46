#!/usr/bin/env node
// The installed command. In a clone that was not built yet it says how; it never installs anything itself.
import { mkdirSync, statSync } from 'node:fs';
import module from 'node:module';
import { isAbsolute, join } from 'node:path';

const at = (path) => new URL(`../dist/${path}`, import.meta.url);
/** 0 for what is not there. */
const written_ms = (path) => statSync(at(path), { throwIfNoEntry: false })?.mtimeMs ?? 0;

// The same program twice: in few files, which are found and read in half the time, and as the compiler wrote it. Who
// compiles without the build (`tsc` alone) means what was compiled. An archive holds the few files only.
const compiled_ms = Math.max(written_ms('cli/main.js'), written_ms('.tsbuildinfo'));
const bundled_ms = written_ms('bundle/main.js');
if (compiled_ms === 0 && bundled_ms === 0) {
  process.stderr.write('error: hpcserve is not built here\n  try: npm run build\n');
  process.exit(12);
}
// Lines of the sources in stack traces, for those who look at stack traces: reading the maps takes its time.
if (process.env.HPCSERVE_DEBUG === '1') process.setSourceMapsEnabled(true);
keepCompiled();
await import(at(bundled_ms > 0 && bundled_ms >= compiled_ms ? 'bundle/main.js' : 'cli/main.js').href);

/**
 * From Node 22.1 on: what was compiled once is not compiled at every command. It is kept in the user's own folder: Node
 * would take one in /tmp, runs whatever code it finds there, and others may make that folder first.
 */
function keepCompiled() {
  const { XDG_CACHE_HOME, HOME } = process.env;
  const cache = XDG_CACHE_HOME || (HOME ? join(HOME, '.cache') : '');
  if (module.enableCompileCache === undefined || !isAbsolute(cache)) return;
  const folder = join(cache, 'hpcserve', 'compiled');
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    module.enableCompileCache(folder);
  } catch {
    // A home that cannot be written only costs the time.
  }
}
