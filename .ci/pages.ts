/** The pages in docs/ that are written from the code; a test holds each against its source. */
import { exitCodes } from '../spec/errors/exit-codes.ts';
import { errorRegistry } from '../spec/errors/registry.ts';
import { deploymentSchema } from '../spec/model-yaml.ts';
import { siteSchema } from '../spec/site.ts';
import { commandPage } from './command-page.ts';
import { schemaRows } from './schema-page.ts';

export const writtenPages: Record<string, () => string | Promise<string>> = {
  'docs/errors.md': errorPage,
  'docs/commands.md': async () => page(await commandPage()),
  'docs/model-yaml.md': () =>
    page([
      '# model.yaml',
      '',
      'What `hpcserve deploy` takes. A minimal file:',
      '',
      '```yaml',
      'name: demo',
      'models:',
      '  - name: my-model',
      '    source: ./model.gguf',
      '```',
      '',
      'Written from `spec/model-yaml.ts`. A wrong key or value is refused with file, line and column.',
      '',
      '| key | value | default | meaning |',
      '|---|---|---|---|',
      ...schemaRows(deploymentSchema),
    ]),
  'docs/site-config.md': () =>
    page([
      '# Site config',
      '',
      'What one cluster is, and how jobs are written for it. `hpcserve init` writes one from what it finds on a',
      'login node; `site-configs/` holds those that ship with hpcserve. Written from `spec/site.ts`.',
      '',
      '| key | value | default | meaning |',
      '|---|---|---|---|',
      ...schemaRows(siteSchema),
    ]),
};

function errorPage(): string {
  return page([
    '# Errors and exit codes',
    '',
    'Every error reads `error: what happened [CODE] / because: … / try: …`. With `--json` it is one object',
    '`{"error": {"code", "what", "because", "try", "details"}}`; the gateway puts code and text into the error',
    'envelope of the OpenAI API. Written from the registry in `spec/errors/`.',
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
        entry.cause,
        '',
        `*To do:* ${entry.fix}`,
        '',
        `HTTP ${entry.http_status} · exit code ${entry.exit_code}`,
        '',
      ]),
  ]);
}

function page(lines: readonly string[]): string {
  return `${lines.join('\n').trimEnd()}\n`;
}
