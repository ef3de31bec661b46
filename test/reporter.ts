import { writeFileSync } from 'node:fs';
import { relative } from 'node:path';
import type { Reporter, SerializedError, TestModule } from 'vitest/node';
import { packageRoot } from '../host/package-root.ts';

declare module 'vitest' {
  interface TaskMeta {
    /** What was seen when the test failed, for whoever reads only the end of a run. */
    seen?: string;
  }
}

export interface TestReport {
  tests: {
    file: string;
    name: string;
    state: 'passed' | 'failed' | 'skipped' | 'pending';
    duration_s: number;
  }[];
  /** One for each test, hook, or file that failed: where, what was said, and what was seen then. */
  failures: { file: string; name: string; message: string; seen?: string }[];
  /** From the start of its process to the end of its last hook, by file. */
  durations: { file: string; duration_s: number }[];
}

/**
 * What `test/run.ts` needs of a run of vitest, as JSON in the file that `HPCSERVE_TEST_REPORT` names: every test with
 * its state, and every error, those of hooks and of files that do not load included (vitest's own JSON leaves them
 * out).
 */
export default class implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], unhandled: readonly SerializedError[]): void {
    const report: TestReport = { tests: [], failures: [], durations: [] };
    for (const module of modules) {
      const file = module.relativeModuleId;
      report.durations.push({ file, duration_s: secondsOf(module) });
      const failed = (name: string, errors: readonly SerializedError[], seen?: string): void => {
        if (errors.length === 0) return;
        const message = errors.map(wordsOf).join('\n');
        report.failures.push(seen === undefined ? { file, name, message } : { file, name, message, seen });
      };
      failed('(the file itself)', module.errors());
      for (const suite of module.children.allSuites())
        failed(`${suite.fullName} (its hooks)`, suite.errors());
      for (const test of module.children.allTests()) {
        const { state, errors } = test.result();
        const duration_s = (test.diagnostic()?.duration ?? 0) / 1000;
        report.tests.push({ file, name: test.fullName, state, duration_s });
        if (state === 'failed') failed(test.fullName, errors, test.meta().seen);
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

function secondsOf(module: TestModule): number {
  const { prepareDuration, environmentSetupDuration, setupDuration, collectDuration, duration } =
    module.diagnostic();
  return (prepareDuration + environmentSetupDuration + setupDuration + collectDuration + duration) / 1000;
}

function wordsOf({ message, stack, diff }: SerializedError): string {
  const at = stack?.split('\n').find((line) => /\.test\.ts:\d+/.test(line));
  return [message, diff, at?.trim()].filter((part) => part !== undefined && part !== '').join('\n');
}
