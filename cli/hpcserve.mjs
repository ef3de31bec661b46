#!/usr/bin/env node
// The installed command. In a clone that was not built yet it says how; it never installs anything itself.
import { existsSync } from 'node:fs';
import module from 'node:module';

const program = new URL('../dist/cli/main.js', import.meta.url);
if (!existsSync(program)) {
  process.stderr.write('error: hpcserve is not built here\n  try: npm run build\n');
  process.exit(12);
}
// From Node 22.1 on: what was compiled once is not compiled at every command.
module.enableCompileCache?.();
await import(program.href);
