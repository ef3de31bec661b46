import { setTimeout as sleep } from 'node:timers/promises';
import type { Command } from 'commander';
import { describeProcesses } from '../../control/gateway/processes.ts';
import { inspectKeeper, type KeeperStatus } from '../../control/keeper/keeper-process.ts';
import type { UnitStatus } from '../../control/reconcile/observe.ts';
import type { Operations } from '../../control/runner/operations.ts';
import { readHistory } from '../../control/scavenger/history.ts';
import type { DeploymentState } from '../../control/state/deployment-state.ts';
import {
  type DeploymentReport,
  type GatewayReport,
  type LaunchReport,
  type NodeKinds,
  nodeKindsOf,
  reportDeployments,
  reportGateway,
} from '../../control/status.ts';
import type { ErrorJson } from '../../spec/errors/error.ts';
import { loadPhaseWords } from '../../spec/session-record.ts';
import type { CliContext } from '../context.ts';
import { confirmationLines, expectationLines } from '../format/confirmation.ts';
import { granularityLines } from '../format/granularity-text.ts';
import { describeGuarantee } from '../format/guarantee.ts';
import { kernelLines } from '../format/kernels.ts';
import { limitLines } from '../format/limits.ts';
import { moveLines } from '../format/moves.ts';
import { describeOverSites } from '../format/over-sites.ts';
import { prefixCacheLines } from '../format/prefix-cache.ts';
import { formatBytes, formatDuration } from '../format/quantities.ts';
import { streamedLines } from '../format/streamed-weights.ts';
import { printable, type StyleName, style } from '../format/style.ts';
import { fittedTable } from '../format/table.ts';
import { turnWords } from '../format/turns.ts';
import { weightSourceLines } from '../format/weight-sources.ts';
import { textWidth, wrap } from '../format/wrap.ts';
import { formatWhen } from '../progress/describe-event.ts';
import { openSession } from '../site-session.ts';
import { addSitesOption, sitesAsked } from '../sites/named-sites.ts';

export function registerStatus(command: Command, context: CliContext): void {
  addSitesOption(
    command.option('-w, --watch', 'keep showing it; Ctrl-C ends'),
    'show it of each of several sites',
  )
    .addHelpText(
      'after',
      `
Asks Slurm about jobs and nodes and reads what the node agents say of themselves. Works from every login node.

With a name it also holds each replica's node, engine and devices against the plan, and shows how many sequences
of which length its engine computes at once, whose kernels multiply in native engines, how much of prompts was found
in caches (as of the last half minute), and what the plan expects of them. Where something differs it says so, without a name too. With --json each of units has planned,
actual, matches (true, false, or absent while there is nothing to compare) and differences.

Examples:
  $ hpcserve status
  $ hpcserve status my-deployment --watch
  $ hpcserve status my-deployment --sites daint,todi
  $ hpcserve status --json | jq '.deployments[].phase'
  $ hpcserve status my-deployment --json | jq '.deployments[].launches[].units[] | {unit, matches, actual}'`,
    )
    .action(async (name: string | undefined, options: { watch?: true; sites?: string[] }) => {
      const sites = sitesAsked(context, options.sites);
      if (sites !== undefined) {
        const { statusOnSites } = await import('../sites/each-site.ts');
        return statusOnSites(context, sites, name, options.watch === true);
      }
      const operations = openSession(context, { command: 'hpcserve status' });
      const nodeKinds = nodeKindsOf(operations);
      let before = '';
      for (;;) {
        const report = await look(operations, name, nodeKinds);
        const whole = name !== undefined;
        const text = context.json ? JSON.stringify(report) : render(context, report, whole).join('\n');
        if (!options.watch) return context.out(text);
        if (text !== before) show(context, text);
        before = text;
        await sleep(Math.max(1_000, operations.runner.poll_interval_ms), undefined, {
          signal: context.signal,
        });
      }
    });
}

interface Report {
  site: string;
  gateway: GatewayReport;
  keeper: KeeperStatus;
  /** Whether a model wants replicas on idle nodes, and when somebody last looked for such nodes. */
  scavenger: { wanted: boolean; looked_ms?: number };
  deployments: DeploymentReport[];
  /** What is wrong with deployments whose files cannot be read; absent where all can. */
  unreadable?: ErrorJson[];
}

async function look(operations: Operations, name: string | undefined, nodeKinds: NodeKinds): Promise<Report> {
  const { store, loaded } = operations;
  const { states, unreadable } =
    name === undefined ? store.loadAll() : { states: [store.require(name)], unreadable: [] };
  const [deployments, gateway] = await Promise.all([
    reportDeployments(operations, states, nodeKinds),
    reportGateway(operations),
  ]);
  const scavenger: Report['scavenger'] = { wanted: states.some(wantsIdleNodes) };
  const { looked_ms } = readHistory(store.layout);
  if (looked_ms !== undefined) scavenger.looked_ms = looked_ms;
  const report: Report = {
    site: loaded.site.name,
    gateway,
    keeper: inspectKeeper(store.layout),
    scavenger,
    deployments,
  };
  if (unreadable.length > 0) report.unreadable = unreadable.map((error) => error.toJSON());
  return report;
}

/** On a terminal the screen is redrawn; elsewhere each change follows the last. */
function show(context: CliContext, text: string): void {
  if (context.tty.stdout && !context.json) context.write(`\u001b[H\u001b[2J${text}\n`);
  else context.out(text);
}

const phaseStyle: Record<DeploymentReport['phase'], StyleName> = {
  waiting: 'yellow',
  starting: 'yellow',
  loading: 'yellow',
  serving: 'green',
  updating: 'yellow',
  replacing: 'yellow',
  asleep: 'dim',
  degraded: 'red',
  failed: 'red',
  stopping: 'yellow',
  stopped: 'dim',
};

function render(
  context: CliContext,
  { site, gateway, keeper, scavenger, deployments, unreadable = [] }: Report,
  whole: boolean,
): string[] {
  const colour = context.colour && context.tty.stdout;
  const lines = [
    gatewayLine(site, gateway),
    ...keeperLine(keeper, deployments),
    ...backfillLine(scavenger, context.now_ms()),
  ];
  for (const { what, because } of unreadable)
    lines.push(style('red', [what, ...because].map(printable).join(': '), colour));
  if (deployments.length + unreadable.length === 0)
    lines.push('no deployments; start one with: hpcserve deploy model.yaml');
  for (const report of deployments) {
    const age = formatDuration(context.now_ms() - report.created_at_ms);
    lines.push(
      '',
      `${style('bold', report.name, colour)}  ${style(phaseStyle[report.phase], report.phase, colour)}  ${report.replicas_serving} of ${report.replicas_wanted} replicas serve${ofBefore(report)}${onIdleNodes(report)}  (${age} old, ${report.spec_file})`,
    );
    if (report.shared_with)
      lines.push(`  a share of what was deployed over ${report.shared_with.join(', ')}`);
    for (const line of (report.over_sites ?? []).flatMap((each) => describeOverSites(each, context.now_ms())))
      lines.push(...wrap(line, textWidth(context), 2));
    for (const line of (report.pipelines ?? []).flatMap((each) => granularityLines(each, context.now_ms())))
      lines.push(...wrap(printable(line), textWidth(context), 2));
    lines.push(...replanLine(report, context.now_ms()), ...lossLine(report, context.now_ms()));
    lines.push(...report.guarantees.flatMap((each) => wrap(describeGuarantee(each), textWidth(context), 2)));
    for (const reason of report.reasons)
      lines.push(`  ${style(phaseStyle[report.phase], '!', colour)} ${printable(reason)}`);
    const rows = report.launches.flatMap((launch) => rowsOf(context, launch));
    const titles = ['JOB', 'STATE', 'NODE', 'REPLICA', 'REPLICA STATE', 'ENGINE', 'DEVICE'];
    if (rows.length > 0)
      lines.push(
        ...fittedTable(
          titles.map((title) => ({ title })),
          rows,
          textWidth(context) - 2,
        ).map((line) => `  ${line}`),
      );
    const confirmed = confirmationLines(report, textWidth(context), whole);
    lines.push(...confirmed.map(({ text, alarming }) => (alarming ? style('red', text, colour) : text)));
    if (whole)
      for (const part of [
        limitLines,
        kernelLines,
        weightSourceLines,
        streamedLines,
        prefixCacheLines,
        moveLines,
        expectationLines,
      ])
        lines.push(...part(report, textWidth(context)));
  }
  return lines;
}

function gatewayLine(site: string, { state, url, because, relays }: GatewayReport): string {
  const workers = relays && describeProcesses(relays);
  return [
    `gateway of ${site}: ${state.replace('_', ' ')}`,
    url ? ` at ${url}` : '',
    workers === undefined ? '' : `, ${workers}`,
    because ? ` (${because})` : '',
  ].join('');
}

/** Silent as long as the first plan stands and nobody had a reason to make it again. */
function replanLine({ planning }: DeploymentReport, now_ms: number): string[] {
  const last = planning?.last;
  if (last === undefined) return [];
  const outcome = last.changed ? last.what : `nothing moved: ${last.what}`;
  return [
    `  planned again ${formatDuration(now_ms - last.at_ms)} ago (${last.trigger}): ${printable(`${last.because}; ${outcome}`)}`,
  ];
}

function lossLine({ node_loss }: DeploymentReport, now_ms: number): string[] {
  if (node_loss === undefined) return [];
  const { at_ms, job_id, because } = node_loss;
  return [`  job ${job_id} was ended ${formatDuration(now_ms - at_ms)} ago: ${printable(because)}`];
}

function rowsOf(context: CliContext, launch: LaunchReport): string[][] {
  const { job } = launch;
  const until =
    job?.phase === 'running' && job.end_time_limit_ms !== undefined
      ? `, ${formatDuration(job.end_time_limit_ms - context.now_ms())} left`
      : '';
  const start =
    job?.phase === 'pending' && job.estimated_start_ms !== undefined
      ? ` (start ${formatWhen(job.estimated_start_ms, context.now_ms())})`
      : '';
  const state = `${job?.state ?? launch.phase}${start}${until}${launch.superseded ? ' (old)' : ''}`;
  if (launch.lends_to) {
    const { units, number, of } = launch.lends_to;
    const [agent] = launch.nodes;
    const names = units.map((unit) => `${unit} (part ${number} of ${of})`).join(', ');
    const devices = agent?.devices.join(', ') ?? launch.node_kind;
    const node = agent?.node ?? job?.nodes ?? '-';
    return [[launch.job_id ?? '-', state, node, names, agent?.phase ?? 'pending', 'native', devices]];
  }
  return launch.units.map((unit, index) => [
    index === 0 ? (launch.job_id ?? '-') : '',
    index === 0 ? state : '',
    unit.node ?? job?.nodes ?? '-',
    unit.unit,
    describeState(unit, context.now_ms()),
    unit.engine,
    unit.device ?? launch.node_kind,
  ]);
}

function describeState(unit: UnitStatus, now_ms: number): string {
  if (unit.state === 'serving' && unit.turns) return `serving${turnWords(unit.turns, unit.asleep === true)}`;
  if (unit.state !== 'loading') return unit.state;
  const { phase, loading_since_ms, usual_load_s } = unit;
  const bytes = unit.bytes_total
    ? ` ${formatBytes(unit.bytes_loaded ?? 0)} of ${formatBytes(unit.bytes_total)}${rateOf(unit)}`
    : '';
  if (phase === undefined) return `loading${bytes}`;
  const elapsed =
    loading_since_ms === undefined ? '' : `, ${formatDuration(Math.max(0, now_ms - loading_since_ms))}`;
  const usual = usual_load_s === undefined ? '' : ` of usually ${formatDuration(1000 * usual_load_s)}`;
  return `${phase === 'weights' ? `loading${bytes}` : loadPhaseWords[phase]}${elapsed}${usual}`;
}

function rateOf({ load_bytes_per_s }: { load_bytes_per_s?: number }): string {
  return load_bytes_per_s === undefined ? '' : ` at ${formatBytes(load_bytes_per_s)}/s`;
}

function wantsIdleNodes({ desired, spec }: DeploymentState): boolean {
  return desired === 'serving' && spec.models.some(({ scavenger }) => scavenger.replicas > 0);
}

/** While a changed version starts. */
function ofBefore({ replicas_old_serving: count }: DeploymentReport): string {
  return count === 0 ? '' : `, and ${count} of the version before until they do`;
}

function onIdleNodes({ launches }: DeploymentReport): string {
  const units = launches
    .filter((launch) => launch.scavenged && !launch.superseded)
    .flatMap((each) => each.units);
  if (units.length === 0) return '';
  return `, and ${units.filter((unit) => unit.state === 'serving').length} of ${units.length} on idle nodes`;
}

/** Silent where no model wants replicas on idle nodes, or somebody looks for them. */
function backfillLine({ wanted, looked_ms }: Report['scavenger'], now_ms: number): string[] {
  const lately = looked_ms !== undefined && now_ms - looked_ms < lately_ms;
  if (!wanted || lately) return [];
  return [
    'backfill: nobody looks for idle nodes; run `hpcserve backfill`, or `hpcserve backfill --once` from cron',
  ];
}
/** Cron jobs that are meant to run come by within this time. */
const lately_ms = 20 * 60_000;

/** Silent where nothing wants to be kept: then nobody misses it. */
function keeperLine(keeper: KeeperStatus, deployments: readonly DeploymentReport[]): string[] {
  if (keeper.state === 'running')
    return [`keeper: process ${keeper.pid} on ${keeper.host} replaces and renews jobs`];
  const wanted = deployments.some(({ phase }) => phase !== 'stopped' && phase !== 'failed');
  return wanted ? ['keeper: none runs; jobs that end are replaced by the next `deploy` only'] : [];
}
