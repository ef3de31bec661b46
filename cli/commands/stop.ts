import type { Command } from 'commander';
import { isGatewayDesired, isGatewayNeeded, stopGateway } from '../../control/gateway/gateway.ts';
import { inspectGateways } from '../../control/gateway/process.ts';
import type { Operations } from '../../control/runner/operations.ts';
import { stopDeployments } from '../../control/stop.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { CliContext } from '../context.ts';
import { parseSeconds } from '../parse-seconds.ts';
import { progressView } from '../progress/view.ts';
import { openSession } from '../site-session.ts';
import { addSitesOption, sitesAsked } from '../sites/named-sites.ts';

interface StopOptions {
  all?: true;
  keepGateway?: true;
  gateway?: true;
  yes?: true;
  timeout?: number;
  sites?: string[];
}

export function registerStop(command: Command, context: CliContext): void {
  addSitesOption(command, 'do so on each of several sites')
    .option('--all', 'end all deployments of the site')
    .option('--keep-gateway', 'leave the gateway running')
    .option('--gateway', 'end only the gateways; jobs go on')
    .option('-y, --yes', 'do not ask with --all')
    .option('--timeout <time>', 'how long jobs may take to end (default 180s)', parseSeconds)
    .addHelpText(
      'after',
      `
Returns when nothing is left; logs and the usage ledger stay. Stopping what is stopped is no error.

Examples:
  $ hpcserve stop my-deployment
  $ hpcserve stop --all --yes
  $ hpcserve stop my-deployment --keep-gateway
  $ hpcserve stop my-deployment --sites daint,todi`,
    )
    .action((name: string | undefined, options: StopOptions) => stop(context, name, options));
}

async function stop(context: CliContext, name: string | undefined, options: StopOptions): Promise<void> {
  if ((name === undefined) === (options.all === undefined && options.gateway === undefined))
    throw new HpcserveError('E_USAGE', {
      what:
        name === undefined ? 'what is to be stopped?' : 'a name and --all or --gateway contradict each other',
      try: ['hpcserve stop NAME', 'hpcserve stop --all'],
    });
  refuseContradiction(options);
  const sites = sitesAsked(context, options.sites);
  if (sites !== undefined) {
    const question = `End all deployments of ${sites.join(' and ')}?`;
    if (options.all && !options.yes && !(await context.confirm(question))) return;
    const { stopOnSites } = await import('../sites/each-site.ts');
    const argv = ['stop'];
    if (name !== undefined) argv.push(name);
    if (options.all) argv.push('--all', '--yes');
    if (options.keepGateway) argv.push('--keep-gateway');
    if (options.gateway) argv.push('--gateway');
    if (options.timeout !== undefined) argv.push('--timeout', `${options.timeout}s`);
    return stopOnSites(context, sites, argv);
  }
  return stopOnSite(context, name, options);
}

/** Options that would take back what another one asks for. @throws E_USAGE */
function refuseContradiction({ gateway, all, keepGateway }: StopOptions): void {
  if (!gateway || !(all || keepGateway)) return;
  throw new HpcserveError('E_USAGE', {
    what: `${all ? '--all' : '--keep-gateway'} and --gateway contradict each other`,
    because: '--gateway ends the gateways alone; jobs go on',
    try: all
      ? ['hpcserve stop --all, which ends the gateways with the last deployment', 'hpcserve stop --gateway']
      : 'leave out one of the two',
  });
}

async function stopOnSite(
  context: CliContext,
  name: string | undefined,
  options: StopOptions,
): Promise<void> {
  const view = progressView(context);
  const said = new Set<string>();
  const operations = openSession(context, {
    command: 'hpcserve stop',
    emit: (event) => {
      // Of one that cannot be read the same is said at the end of each other one.
      if (event.kind === 'warning' && said.has(event.message)) return;
      if (event.kind === 'warning') said.add(event.message);
      view.show(event);
    },
  });
  const { store } = operations;
  try {
    if (options.gateway) return await stopGateway(operations);
    const names = name === undefined ? store.list() : [name];
    if (options.all && names.length > 0 && !options.yes) {
      if (!(await context.confirm(`End ${names.join(', ')}?`))) return;
    }
    const timeout_ms = options.timeout === undefined ? undefined : options.timeout * 1000;
    await stopDeployments(operations, names, { keep_gateway: true, timeout_ms });
    if (name !== undefined && !context.json) noteOtherShares(context, operations, name);
    const gateways = await inspectGateways(store.layout);
    // One that was being started a moment ago, by a keeper that has ended since, does not answer yet.
    const running = gateways.some(
      ({ layout, status }) => status.state !== 'not_running' || isGatewayDesired(layout),
    );
    if (!options.keepGateway && !isGatewayNeeded(store) && running) await stopGateway(operations);
  } finally {
    view.close();
  }
}

/** What was deployed over several sites has shares on others, which go on. */
function noteOtherShares(context: CliContext, { store, loaded }: Operations, name: string): void {
  const { share } = store.require(name).spec;
  const others = (share?.sites ?? []).filter(
    ({ site, models }) => site !== loaded.site.name && models.length > 0,
  );
  if (others.length === 0) return;
  const sites = others.map(({ site }) => site);
  context.note(
    `this was the share of ${loaded.site.name}; those of ${sites.join(' and ')} go on: hpcserve stop ${name} --sites ${sites.join(',')}`,
  );
}
