import type { Command } from 'commander';
import { withScavengerLock } from '../../control/keeper/keeper-lock.ts';
import { reportScavenged, type ScavengerReport } from '../../control/scavenger/report.ts';
import { Scavenger, type ScavengerRound } from '../../control/scavenger/scavenger.ts';
import { ownUser } from '../../host/own-user.ts';
import type { CliContext } from '../context.ts';
import { printable } from '../format/style.ts';
import { fittedTable } from '../format/table.ts';
import { textWidth, wrap } from '../format/wrap.ts';
import { parseSince } from '../parse-since.ts';
import { progressView } from '../progress/view.ts';
import { openSite } from '../site-session.ts';

export function registerBackfill(command: Command, context: CliContext): void {
  command
    .option('--once', 'look once and act, then end: for cron')
    .option('--report', 'only show what was gained from idle nodes')
    .option(
      '--since <when>',
      'of the report: how far back (7d, 24h) or from which day (2026-01-31)',
      (text) => parseSince(text, context.now_ms()),
    )
    .addHelpText(
      'after',
      `
For models that say so in model.yaml (scavenger: {replicas: N}), on node kinds of tier scavenger; the site config
bounds it (scavenging). Jobs are small, take what idle nodes there are until somebody else wants them, and leave
within the grace time. See docs/scavenging.md.

Examples:
  $ hpcserve backfill
  $ hpcserve backfill --once
  $ hpcserve backfill --report --since 7d`,
    )
    .action(async (options: { once?: true; report?: true; since?: number }) => {
      const loaded = openSite(context);
      if (options.report) {
        const now_ms = context.now_ms();
        const report = reportScavenged(loaded.layout, options.since ?? now_ms - week_ms, now_ms);
        return context.out(
          context.json ? JSON.stringify(report) : reportText(report, textWidth(context)).join('\n'),
        );
      }
      const view = progressView(context);
      const scavenger = new Scavenger({
        input: {
          loaded,
          facts: { user: ownUser(context.environment).name, environment: context.environment },
          command: 'hpcserve backfill',
          now_ms: context.now_ms,
          signal: context.signal,
        },
        emit: (event) => view.show(event),
      });
      try {
        const round = await withScavengerLock(loaded.layout, 'hpcserve backfill', async () => {
          if (options.once) return scavenger.round();
          await scavenger.run();
          return undefined;
        });
        if (round)
          context.out(context.json ? JSON.stringify(round) : roundText(round, textWidth(context)).join('\n'));
      } finally {
        view.close();
      }
    });
}

/** A report covers so much unless told otherwise. */
const week_ms = 7 * 86_400_000;

function roundText({ submitted, withdrawn, replicas, held_back }: ScavengerRound, width: number): string[] {
  return [
    ...wrap(
      `${submitted} submitted, ${withdrawn} withdrawn; ${replicas} replica(s) on idle nodes, those that wait included`,
      width,
    ),
    ...held_back.flatMap((line) => wrap(`! ${printable(line)}`, width, 2)),
  ];
}

function reportText(
  { since_ms, idle_device_s, all, models, node_kinds }: ScavengerReport,
  width: number,
): string[] {
  const hours = (seconds: number): string => (seconds / 3600).toFixed(1);
  const numbers = ['RUNS', 'PREEMPTED', 'DEVICE-HOURS', 'SERVING', 'STARTING', 'REQUESTS', 'ANSWER TOKENS'];
  const rows = models.map((model) => [
    `${model.deployment}/${model.model}`,
    String(model.runs),
    String(model.preempted),
    hours(model.device_s),
    hours(model.serving_device_s),
    hours(model.starting_device_s),
    String(model.requests),
    String(model.completion_tokens),
  ]);
  const share =
    idle_device_s > 0
      ? `; ${Math.round((100 * Math.min(all.serving_device_s, idle_device_s)) / idle_device_s)} % of the ${hours(idle_device_s)} idle device-hours that were seen served`
      : '';
  return [
    ...wrap(
      `since ${new Date(since_ms).toISOString().slice(0, 16)}Z: ${hours(all.device_s)} device-hours on idle nodes, ${all.completion_tokens} answer tokens${share}`,
      width,
    ),
    ...(rows.length > 0
      ? fittedTable(
          [{ title: 'MODEL' }, ...numbers.map((title) => ({ title, align: 'right' as const }))],
          rows,
          width,
        )
      : []),
    ...node_kinds.flatMap(
      ({ node_kind, preemptions, job_hours, running, survives_hour, some_survive_hour }) =>
        wrap(
          `${node_kind}: ${preemptions} preemption(s) in ${job_hours.toFixed(1)} job-hours of the last two days; a replica that runs is there an hour later with probability ${survives_hour.toFixed(2)}${running > 1 ? `, one of the ${running} that run with ${some_survive_hour.toFixed(2)}` : ''}`,
          width,
        ),
    ),
  ];
}
