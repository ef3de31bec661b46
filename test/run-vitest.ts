/** One run of vitest as a process of its own, and what came of it. */
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { packageRoot } from '../host/package-root.ts';
import type { Lane } from './lanes.ts';
import type { TestReport } from './reporter.ts';

interface VitestOptions {
  /** Where another run writes to the same terminal: each line then begins with the title. */
  prefixed?: boolean;
  /** Added to that of this process. */
  environment?: Readonly<Record<string, string>>;
}

export async function runVitest(
  { title, options }: Lane,
  files: readonly string[],
  { prefixed = false, environment = {} }: VitestOptions = {},
): Promise<TestReport> {
  if (!prefixed) console.log(`\n── ${title} ──`);
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-test-'));
  const reportFile = join(folder, 'report.json');
  try {
    const ended = await start(title, [...options, ...files], prefixed, {
      ...environment,
      HPCSERVE_TEST_REPORT: reportFile,
    });
    const report = JSON.parse(readFileSync(reportFile, 'utf8')) as TestReport;
    if (ended !== 0 && report.failures.length === 0)
      report.failures.push({
        file: '',
        name: `(vitest, ${title})`,
        message: `ended with ${ended} although no test failed: see above`,
      });
    return report;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function start(
  title: string,
  argv: readonly string[],
  prefixed: boolean,
  environment: Readonly<Record<string, string>>,
): Promise<number | NodeJS.Signals | null> {
  const vitest = join(packageRoot, 'node_modules/vitest/vitest.mjs');
  const config = join(packageRoot, 'test/vitest.config.ts');
  const reporters = ['--reporter=default', `--reporter=${join(packageRoot, 'test/reporter.ts')}`];
  const output = prefixed ? 'pipe' : 'inherit';
  const env: NodeJS.ProcessEnv = { ...process.env, ...environment };
  // Behind a pipe, vitest would see no terminal.
  if (process.stdout.isTTY) env.FORCE_COLOR = '1';
  const child = spawn(
    process.execPath,
    [vitest, 'run', '--config', config, '--passWithNoTests', ...reporters, ...argv],
    {
      cwd: packageRoot,
      stdio: ['ignore', output, output],
      env,
    },
  );
  if (prefixed) for (const stream of [child.stdout, child.stderr]) showLines(stream!, title);
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code, signal) => resolve(code ?? signal));
  });
}

function showLines(stream: Readable, title: string): void {
  createInterface({ input: stream }).on('line', (line) => console.log(`${title.padEnd(10)} │ ${line}`));
}
