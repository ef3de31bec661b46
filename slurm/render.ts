/** Writes job scripts from the templates in sbatch-templates/. */
import { join } from 'node:path';
import { Eta } from 'eta';
import { packageRoot } from '../host/package-root.ts';
import type { Directive } from '../spec/slurm-types.ts';
import type { JobScript } from './job-script.ts';
import { commentText, directiveLine, shellQuote, verbatimDirectiveLine } from './quote.ts';

/**
 * `<%= x %>` prints a shell word that stands for exactly x; there is no HTML here. `<%~ x %>` prints x as it
 * is and is used only for names that were checked and for prologue lines, which are bash by definition.
 */
const templates = new Eta({
  views: join(packageRoot, 'sbatch-templates'),
  autoEscape: true,
  escapeFunction: (value) => shellQuote(String(value)),
  autoTrim: false,
  cache: true,
});

/**
 * The whole text of the script; the same input gives the same bytes.
 * @throws E_SLURM_SCRIPT for values that no script can hold.
 */
export function renderJobScript(script: JobScript): string {
  return templates.render(`./${script.role}.sbatch.eta`, {
    ...script,
    sbatch_lines: [
      ...script.directives.typed.map(({ name, value }) => directiveLine(name, value)),
      ...script.directives.extra.map((directive) => verbatimDirectiveLine(directive.value ?? '')),
    ],
    comment: commentText,
  });
}

/** All options of a script with their origins, as `SlurmClient.submit` wants them. */
export function directivesOf(script: JobScript): Directive[] {
  // A later option overrides an earlier one of the same name, so the later origin explains a refusal.
  const extra = new Set(script.directives.extra.map((directive) => directive.name));
  return [
    ...script.directives.typed.filter((directive) => !extra.has(directive.name)),
    ...script.directives.extra.map((directive) => ({
      name: directive.name,
      value: directive.value?.replace(/^--[a-z-]+=?/, '') ?? '',
      source: directive.source,
    })),
  ];
}
