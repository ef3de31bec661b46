import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import type { Command } from 'commander';
import { programOnPath } from '../../control/state/site-files.ts';
import { readHostFacts } from '../../host/host-facts.ts';
import { makeFolders } from '../../host/make-folders.ts';
import { packageRoot } from '../../host/package-root.ts';
import { SlurmCommandClient } from '../../slurm/client.ts';
import { LocalCommandRunner } from '../../slurm/command-runner.ts';
import { discoverSite } from '../../slurm/discover.ts';
import { renderSiteDraft } from '../../slurm/site-draft-yaml.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { CliContext } from '../context.ts';

interface InitOptions {
  local?: true;
  output?: string;
  force?: true;
  stdout?: true;
}

export function registerInit(command: Command, context: CliContext): void {
  command
    .option('--local', 'for this machine alone, even where there is Slurm')
    .option('-o, --output <file>', 'where to write it; default: sites/NAME.yaml of your configuration folder')
    .option('--stdout', 'print it instead of writing it')
    .option('-f, --force', 'overwrite an existing file')
    .addHelpText(
      'after',
      `
Asks sinfo and scontrol, submits nothing. Read the file and correct it; hpcserve doctor checks it.

Examples:
  $ hpcserve init
  $ hpcserve init --stdout | less
  $ hpcserve init --local --output here.yaml && hpcserve deploy model.yaml --site here.yaml`,
    )
    .action(async (options: InitOptions) => {
      const draft = await draftSite(context, options.local === true);
      if (options.stdout) {
        const { name, text, warnings } = draft;
        return context.json
          ? context.out(JSON.stringify({ site: name, text, warnings }))
          : context.write(text);
      }
      const path =
        options.output === undefined
          ? join(context.configuration.user_folder, 'sites', `${draft.name}.yaml`)
          : resolve(context.working_folder, options.output);
      if (existsSync(path) && !options.force)
        throw new HpcserveError('E_FILE_EXISTS', { what: `${path} exists already` });
      makeFolders(dirname(path));
      writeFileSync(path, draft.text);
      for (const warning of draft.warnings) context.note(`check: ${warning}`);
      if (context.json) context.out(JSON.stringify({ site: draft.name, path, warnings: draft.warnings }));
      else {
        context.out(path);
        context.note('read it and correct it, then: hpcserve doctor');
      }
    });
}

async function draftSite(
  context: CliContext,
  local: boolean,
): Promise<{ name: string; text: string; warnings: string[] }> {
  if (local || !programOnPath('sbatch', context.environment)) {
    const text = readFileSync(join(packageRoot, 'site-configs', 'local.yaml'), 'utf8');
    return { name: 'local', text, warnings: [] };
  }
  const unreadable: string[] = [];
  const client = new SlurmCommandClient(new LocalCommandRunner({ environment: context.environment }), {
    onUnreadable: (what) => unreadable.push(what),
  });
  const draft = await discoverSite(client, readHostFacts());
  return {
    name: draft.site.name,
    text: renderSiteDraft(draft),
    warnings: [...unreadable, ...draft.warnings],
  };
}
