/**
 * Writes the golden scripts anew: `node dist/test/slurm/write-golden.js [--check]`. For a person, who reads
 * the difference before committing it; tests only compare.
 */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { renderJobScript } from '../../slurm/job-script.ts';
import { allScriptCases } from './script-cases.ts';

const folder = join(packageRoot, 'test', 'slurm', 'golden');
mkdirSync(folder, { recursive: true });
for (const { name, script } of allScriptCases()) {
  const file = join(folder, `${name}.sh`);
  const text = renderJobScript(script);
  const before = existsSync(file) ? readFileSync(file, 'utf8') : undefined;
  if (before === text) continue;
  if (!process.argv.includes('--check')) writeFileSync(file, text);
  process.stdout.write(`${before === undefined ? 'new' : 'changed'}: ${file}\n`);
}
