import { spawnSync } from 'node:child_process';
import { HpcserveError } from '../../spec/errors/error.ts';

/** Standard output of a program that has to succeed. @throws HpcserveError E_PACKAGE with its last words */
export function run(
  argv: readonly [string, ...string[]],
  cwd: string,
  env: NodeJS.ProcessEnv = process.env,
): string {
  const result = spawnSync(argv[0], argv.slice(1), {
    cwd,
    env,
    encoding: 'utf8',
    maxBuffer: 64 * 1024 * 1024,
  });
  if (result.status === 0) return result.stdout;
  const output = `${result.stdout ?? ''}${result.stderr ?? ''}`.trim().split('\n');
  throw new HpcserveError('E_PACKAGE', {
    what: `${argv.slice(0, 3).join(' ')} failed`,
    because: result.error ? String(result.error) : output.slice(-5),
  });
}
