import type { OverSitesReport } from '../../control/status.ts';
import type { StatedModel } from '../../spec/scaling-statement.ts';
import { formatDuration } from './quantities.ts';
import { printable } from './style.ts';

/** What happens where of a model whose replicas follow demand over several sites, and why; a sentence each. */
export function describeOverSites(report: OverSitesReport, now_ms: number): string[] {
  const { own, heard, silent, replicas_min, replicas_max, because, since_ms, held, no_room } = report;
  const others = heard.flatMap(({ site, said }) =>
    said && !silent.includes(site) ? [siteWords(site, said)] : [],
  );
  const age = formatDuration(Math.max(0, now_ms - since_ms));
  const lines = [
    `${report.model} follows demand over all sites, ${replicas_min} to ${replicas_max} replicas together: ${[siteWords('here', own), ...others].join('; ')}`,
    `divided ${age} ago: ${because}`,
  ];
  if (held !== undefined) lines.push(`nothing is changed here now: ${held}`);
  for (const site of silent) {
    const last = heard.find((each) => each.site === site)!;
    const quiet = formatDuration(Math.max(0, now_ms - last.heard_ms));
    lines.push(`${site} has not been heard for ${quiet}: its part is the other sites'`);
  }
  if (no_room !== undefined) lines.push(`no further one has a place here: ${no_room}`);
  return lines.map(printable);
}

/** `two 1, about to have 2 (0 serve, 3.5 requests at once come in, the next one costs 0.3)`. */
function siteWords(site: string, { have, claim, serving, mean, limit, cost }: StatedModel): string {
  const next = claim === have ? '' : `, about to have ${claim}`;
  const load = mean > 0 ? `, ${mean} requests at once come in` : '';
  const more = limit > claim ? `, the next one costs ${Number(cost.toPrecision(2))}` : ', no room for more';
  return `${site} ${have}${next} (${serving} serve${serving === 1 ? 's' : ''}${load}${more})`;
}
