import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';

/** One config for all suites; `test/run.ts` decides which of them run and names those that could not. */
export default defineConfig({
  root: fileURLToPath(new URL('..', import.meta.url)),
  test: {
    include: ['test/**/*.test.ts'],
    setupFiles: ['test/limits.ts'],
    pool: 'forks',
    maxWorkers: 2,
    // More than the waits in a test together, which are 15 to 50 s each: the one that is too long is to say so.
    testTimeout: 120_000,
    hookTimeout: 120_000,
    // Waiting, not a promise: the default of one second is over while a busy machine does something else.
    expect: { poll: { timeout: 15_000 } },
  },
});
