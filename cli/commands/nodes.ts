import type { Command } from 'commander';
import { liveFacts } from '../../control/operations.ts';
import { offersOf } from '../../control/site-offers.ts';
import type { NodeKindOffer } from '../../spec/plan.ts';
import { formatSlurmDuration } from '../../spec/slurm-types.ts';
import type { CliContext } from '../context.ts';
import { formatBytes } from '../format/quantities.ts';
import { formatTable } from '../format/table.ts';
import { openSession } from '../site-session.ts';

export function registerNodes(program: Command, context: CliContext): void {
  program
    .command('nodes')
    .description('Show the kinds of nodes of the site: what they have, how many there are and are idle')
    .addHelpText('after', '\nExamples:\n  $ hpcserve nodes\n  $ hpcserve nodes --site perlmutter --json')
    .action(async () => {
      const operations = openSession(context, { command: 'hpcserve nodes' });
      const live = await liveFacts(operations);
      const offers = offersOf(operations.loaded.site, live, context.environment);
      if (context.json)
        return context.out(JSON.stringify({ site: operations.loaded.site.name, node_kinds: offers }));
      const titles = [
        'NODE KIND',
        'TIER',
        'PARTITION',
        'NODES',
        'IDLE',
        'CPUS',
        'MEMORY',
        'DEVICES',
        'LONGEST',
        'ENGINES',
      ];
      for (const line of formatTable(
        titles.map((title) => ({ title })),
        offers.map(rowOf),
      ))
        context.out(line);
    });
}

function rowOf(offer: NodeKindOffer): string[] {
  const { devices } = offer;
  return [
    offer.node_kind,
    offer.tier,
    offer.partitions.join(',') || '-',
    offer.nodes_total === Number.MAX_SAFE_INTEGER ? '-' : String(offer.nodes_total),
    offer.nodes_idle === undefined ? '-' : String(offer.nodes_idle),
    String(offer.cpus),
    formatBytes(offer.memory_bytes),
    `${devices.count}× ${devices.model} ${formatBytes(devices.memory_bytes)}${devices.emulated ? ' (emulated on CPU)' : ''}`,
    offer.time_limit_max_s === undefined ? '-' : formatSlurmDuration(offer.time_limit_max_s),
    Object.entries(offer.engines)
      .filter(([, engine]) => engine?.available)
      .map(([name]) => name)
      .join(', '),
  ];
}
