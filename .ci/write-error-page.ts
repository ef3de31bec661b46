/** Writes docs/errors.md from the registry: `node dist/.ci/write-error-page.js`. A test holds the two together. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { exitCodes } from '../spec/errors/exit-codes.ts';
import { errorRegistry } from '../spec/errors/registry.ts';
import { packageRoot } from '../spec/package-root.ts';

const lines = [
  '# Errors and exit codes',
  '',
  'Every error reads `error: what happened [CODE] / because: … / try: …`. With `--json` it is one object',
  '`{"error": {"code", "what", "because", "try", "details"}}`; the gateway puts code and text into the error',
  'envelope of the OpenAI API. This page is written from the registry in `spec/errors/`.',
  '',
  '## Exit codes',
  '',
  '| code | meaning |',
  '|---|---|',
  ...Object.entries(exitCodes).map(([code, meaning]) => `| ${code} | ${meaning} |`),
  '',
  '## Codes',
  '',
  ...Object.entries(errorRegistry)
    .sort(([a], [b]) => a.localeCompare(b))
    .flatMap(([code, entry]) => [
      `### \`${code}\``,
      `${entry.cause}`,
      '',
      `*To do:* ${entry.fix}`,
      '',
      `HTTP ${entry.http_status} · exit code ${entry.exit_code}`,
      '',
    ]),
];
writeFileSync(join(packageRoot, 'docs/errors.md'), `${lines.join('\n').trimEnd()}\n`);
