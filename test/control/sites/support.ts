/** Sites that answer what a test says, and remember what they were told. */
import type { SiteCommands } from '../../../control/sites/site-commands.ts';
import type { SiteQuestion } from '../../../spec/site-question.ts';
import type { Share } from '../../../spec/site-share.ts';

export function answer(site: string, deployed?: SiteQuestion['deployed']): SiteQuestion {
  return {
    format: 1,
    site,
    hostname: site,
    question: { site, models: [], node_kinds: [] } as unknown as SiteQuestion['question'],
    inputs_digest: 'd',
    warnings: [],
    mesh: { folder: `/${site}`, gossip: false, bootstrap: [], relay: [], port: 0 },
    deployed,
  };
}

/** So many replicas of `m` on each site; 0: the site was named and got nothing. */
export function share(of: string, replicas: Record<string, number>): Share {
  const sites = Object.entries(replicas).map(([site, count]) => {
    const model = { name: 'm', min_stable_replicas: 0, scavenger_replicas: 0, request_share: 1 };
    return { site, models: count > 0 ? [{ ...model, replicas: count }] : [] };
  });
  return { of, sites };
}

/** @param told what each site was told, in order over all: `near: deploy …` */
export function scriptedSite(
  name: string,
  told: string[],
  run: (argv: readonly string[]) => string[] | Promise<string[]>,
): SiteCommands {
  const bring = async (path: string): Promise<string> => path;
  return {
    name,
    bringFile: bring,
    bringShare: bring,
    bringPlan: bring,
    show: async () => '',
    run: async (argv, onLine) => {
      told.push(`${name}: ${argv[0]}`);
      const lines = await run(argv);
      for (const line of lines) onLine?.(line);
      return lines.join('\n');
    },
  };
}
