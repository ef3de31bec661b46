/** What stands in the rooms of the product and is used by none of its entries: whole files, and exports. */
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { packageRoot } from '../../host/package-root.ts';

/** Of knip's report, what is asked for here. */
const reportSchema = z.object({
  issues: z.array(
    z.object({
      file: z.string(),
      files: z.array(z.unknown()),
      exports: z.array(z.object({ name: z.string() })),
      types: z.array(z.object({ name: z.string() })),
    }),
  ),
});

/** Runs knip with one of the configs beside this file. Answers with `path` of a file, and `path#name` of an export. */
export function unreached(config: 'production' | 'with-benches'): string[] {
  const knip = join(packageRoot, 'node_modules/knip/bin/knip.js');
  const options = [
    '--production',
    '--config',
    `.ci/knip/${config}.ts`,
    '--reporter',
    'json',
    '--no-progress',
  ];
  const include = ['--include', 'files,exports,types'];
  const { stdout, stderr, status } = spawnSync(process.execPath, [knip, ...options, ...include], {
    cwd: packageRoot,
    encoding: 'utf8',
    maxBuffer: 64 * 1024 * 1024,
  });
  // 1 means that there are issues; anything above, that it could not look.
  if (status === null || status > 1) throw new Error(`knip ended with ${status}: ${stderr}`);
  return reportSchema
    .parse(JSON.parse(stdout))
    .issues.flatMap(({ file, files, exports, types }) =>
      files.length > 0 ? [file] : [...exports, ...types].map(({ name }) => `${file}#${name}`),
    )
    .sort();
}

/** What may stay without being reached, each with the reason: `.ci/unreached.json`. */
export function listedUnreached(): Record<string, string> {
  const text = readFileSync(join(packageRoot, '.ci/unreached.json'), 'utf8');
  return z.record(z.string(), z.string().min(20)).parse(JSON.parse(text));
}
