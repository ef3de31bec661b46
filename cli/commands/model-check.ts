import { dirname } from 'node:path';
import type { Command } from 'commander';
import { resolveModelSource } from '../../control/model-source/resolve.ts';
import { expandSite } from '../../spec/site-paths.ts';
import type { CliContext } from '../context.ts';
import { summaryLines } from '../format/model-summary.ts';
import { openSite } from '../site-session.ts';

export function registerModelCheck(model: Command, context: CliContext): void {
  model
    .command('check <source>')
    .description('Resolve and check the source of a model as deploy does, without deploying')
    .addHelpText(
      'after',
      `
Sources: a GGUF file, a Hugging Face folder, hf:org/name[@revision][/file] in the offline cache or the
site's models_dir, alias:NAME of the site config. Exit code 0: it can be deployed; 4: it cannot, and why.

Examples:
  $ hpcserve model check ./model.gguf
  $ hpcserve model check hf:org/name@main
  $ hpcserve model check alias:best --site alps`,
    )
    .action(async (source: string) => {
      const loaded = openSite(context);
      const site = expandSite(loaded.site, context.environment);
      const resolved = await resolveModelSource(source, {
        base_folder: context.working_folder,
        environment: context.environment,
        aliases: site.model_aliases,
        alias_folder: dirname(loaded.path),
        models_dir: site.models_dir,
      });
      if (context.json) {
        context.out(JSON.stringify(resolved));
        return;
      }
      context.out(`${resolved.kind} at ${resolved.path}`);
      for (const line of summaryLines(resolved.summary)) context.out(line);
      context.out(`fingerprint ${resolved.fingerprint}`);
    });
}
