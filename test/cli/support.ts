/** Runs the built `hpcserve` as its users do: a process of its own, with a home of its own. */
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';

export interface Outcome {
  code: number | null;
  stdout: string;
  stderr: string;
}

export interface Home {
  folder: string;
  /** @param argv after `hpcserve`. */
  run(
    argv: readonly string[],
    options?: { env?: Record<string, string>; input?: string; timeout_ms?: number },
  ): Promise<Outcome>;
  dispose(): void;
}

/** What gives up by itself says why: it is not ended in that moment, nor before. */
function limitOf_ms(argv: readonly string[]): number {
  const told = argv.indexOf('--timeout');
  const own_s = told < 0 ? 0 : Number(/^(\d+)s$/.exec(argv[told + 1] ?? '')?.[1] ?? 0);
  return Math.max(60_000, 1000 * own_s + 10_000);
}

export function temporaryHome(): Home {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-home-'));
  return {
    folder,
    // Workers whose agent was killed may write until they have noticed.
    dispose: () => rmSync(folder, { recursive: true, force: true, maxRetries: 10 }),
    run: (argv, { env = {}, input = '', timeout_ms = limitOf_ms(argv) } = {}) =>
      new Promise((resolve, reject) => {
        const child = spawn(process.execPath, [join(packageRoot, 'cli/hpcserve.mjs'), ...argv], {
          cwd: folder,
          // No sbatch on this PATH: a machine without Slurm.
          env: { PATH: '/nowhere', HOME: folder, ...env },
          timeout: timeout_ms,
        });
        let stdout = '';
        let stderr = '';
        child.stdout.setEncoding('utf8').on('data', (text: string) => {
          stdout += text;
        });
        child.stderr.setEncoding('utf8').on('data', (text: string) => {
          stderr += text;
        });
        child.stdin.end(input);
        child.once('error', reject);
        child.once('close', (code) => resolve({ code, stdout, stderr }));
      }),
  };
}
