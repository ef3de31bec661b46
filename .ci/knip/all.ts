/** `npm run check`: what nothing at all uses, tests and benches included, and packages that are not in package.json. */
import type { KnipConfig } from 'knip';
import { benchEntries, productionEntries, systemBinaries } from './entries.ts';

const config: KnipConfig = {
  entry: [
    ...productionEntries,
    ...benchEntries,
    'test/run.ts',
    'test/cluster/main.ts',
    'test/engines/main.ts',
    'test/vitest.config.ts',
    'test/limits.ts',
    'test/reporter.ts',
    'test/**/*.test.ts',
    // Started by tests or by people, as programs of their own.
    'test/agent/fixture-engine.mjs',
    'test/agent/pipeline/ring-end.ts',
    'test/engines/vulkan/compile-shaders.ts',
    'test/gateway/login/oidc-provider-process.mjs',
    'test/gateway/trace/salt-opener.ts',
    'test/ledger/writer.ts',
    'test/native/fabric/left-open.ts',
    'test/slurm/write-golden.ts',
    'test/solver/routing/full-tree.ts',
    'test/write-long-suites.ts',
    '.ci/*.ts',
    '.ci/knip/*.ts',
    'web/src/main.tsx',
    'web/vite.config.ts',
  ],
  project: ['**/*.{ts,tsx,mjs}', '!dist/**', '!build/**'],
  // A type that a public function of the same file takes or gives may be exported for its callers.
  ignoreExportsUsedInFile: { interface: true, type: true },
  ignoreBinaries: systemBinaries,
  ignoreDependencies: [
    // Run by path, so that no PATH is needed.
    '@biomejs/biome',
    // Given to a page as text.
    'axe-core',
    // Of programs that find them elsewhere: `npm run engines -- sdks`.
    '@instructor-ai/instructor',
    '@llamaindex/openai',
    '@openai/agents',
    'llamaindex',
  ],
};
export default config;
