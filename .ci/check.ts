/** `npm run check`: formatting and lint (biome), dead code and unlisted packages (knip), types of the page (tsc). */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { packageRoot } from '../host/package-root.ts';

const checks: { name: string; argv: [string, ...string[]] }[] = [
  { name: 'biome', argv: ['@biomejs/biome/bin/biome', 'ci', '--config-path=.ci/biome-rules.json', '.'] },
  { name: 'knip', argv: ['knip/bin/knip.js', '--config', '.ci/knip/all.ts', '--no-progress'] },
  { name: 'types of web', argv: ['typescript/bin/tsc', '-p', 'web'] },
];

let failures = 0;
for (const check of checks) {
  const [program, ...args] = check.argv;
  const result = spawnSync(process.execPath, [join(packageRoot, 'node_modules', program), ...args], {
    cwd: packageRoot,
    stdio: 'inherit',
  });
  const ok = result.status === 0;
  console.log(`${ok ? 'PASSED' : 'FAILED'} ${check.name}`);
  if (!ok) failures++;
}
process.exit(failures === 0 ? 0 : 1);
