/** What every site says of itself before one plan is made over all: `hpcserve plan FILE --question`, asked of each. */
import type { Objective } from '../../spec/model-yaml.ts';
import { type SiteQuestion, siteQuestionSchema } from '../../spec/site-question.ts';
import type { SiteCommands } from './site-commands.ts';
import { understood } from './site-output.ts';

/** What was said on the command line of how to plan. */
export interface AskOptions {
  /** Options of Slurm, as they were typed. */
  slurm: readonly string[];
  offline: boolean;
  objective?: Objective;
}

export interface AskedSite {
  commands: SiteCommands;
  answer: SiteQuestion;
}

/** Asks all sites at once. @throws the first error, with the name of its site */
export async function askSites(
  sites: readonly SiteCommands[],
  file: string,
  options: AskOptions,
): Promise<AskedSite[]> {
  return Promise.all(
    sites.map(async (commands) => ({
      commands,
      answer: await askSite(commands, await commands.bringFile(file), options),
    })),
  );
}

/** @param path of the file there. @throws E_SITES_DIFFER, and what the command failed with */
export async function askSite(
  commands: SiteCommands,
  path: string,
  { slurm, offline, objective }: AskOptions,
): Promise<SiteQuestion> {
  const options = [...slurm];
  if (offline) options.push('--offline');
  if (objective !== undefined) options.push('--objective', objective);
  const text = await commands.run(['plan', path, '--question', ...options]);
  return understood(commands.name, siteQuestionSchema, text);
}
