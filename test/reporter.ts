/**
 * What `test/run.ts` needs of a run of vitest, as JSON in the file that `HPCSERVE_TEST_REPORT` names: every test with its
 * state, and every error, those of hooks and of files that do not load included (vitest's own JSON leaves them out).
 */
import { writeFileSync } from 'node:fs';
import { relative } from 'node:path';
import type { Reporter, SerializedError, TestModule } from 'vitest/node';
import { packageRoot } from '../host/package-root.ts';

export interface TestReport {
  tests: { file: string; name: string; state: 'passed' | 'failed' | 'skipped' | 'pending' }[];
  /** One for each test, hook, or file that failed: where, and what was said. */
  failures: { file: string; name: string; message: string }[];
}

export default class implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], unhandled: readonly SerializedError[]): void {
    const report: TestReport = { tests: [], failures: [] };
    for (const module of modules) {
      const file = module.relativeModuleId;
      const failed = (name: string, errors: readonly SerializedError[]): void => {
        if (errors.length > 0) report.failures.push({ file, name, message: errors.map(wordsOf).join('\n') });
      };
      failed('(the file itself)', module.errors());
      for (const suite of module.children.allSuites())
        failed(`${suite.fullName} (its hooks)`, suite.errors());
      for (const test of module.children.allTests()) {
        const { state, errors } = test.result();
        report.tests.push({ file, name: test.fullName, state });
        if (state === 'failed') failed(test.fullName, errors);
      }
    }
    for (const error of unhandled) {
      // vitest adds the file that was running.
      const { VITEST_TEST_PATH: path } = error as { VITEST_TEST_PATH?: string };
      const file = path === undefined ? '' : relative(packageRoot, path);
      report.failures.push({ file, name: '(an error outside of any test)', message: wordsOf(error) });
    }
    writeFileSync(process.env.HPCSERVE_TEST_REPORT!, JSON.stringify(report));
  }
}

function wordsOf({ message, stack, diff }: SerializedError): string {
  const at = stack?.split('\n').find((line) => /\.test\.ts:\d+/.test(line));
  return [message, diff, at?.trim()].filter((part) => part !== undefined && part !== '').join('\n');
}
