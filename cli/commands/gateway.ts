import { type Command, InvalidArgumentError } from 'commander';
import { ensureGateway, stopGateway } from '../../control/gateway/gateway.ts';
import { type GatewayStatus, inspectGateways, layoutOf } from '../../control/gateway/process.ts';
import {
  describeProcesses,
  inspectProcesses,
  type ProcessesReport,
} from '../../control/gateway/processes.ts';
import { baseUrl, waysOf } from '../../control/gateway/url.ts';
import { warningLines } from '../../control/gateway/warnings.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { StateLayout } from '../../spec/state-layout.ts';
import type { CliContext } from '../context.ts';
import { wayLines } from '../format/gateway-ways.ts';
import { fittedTable } from '../format/table.ts';
import { textWidth } from '../format/wrap.ts';
import { parsePort } from '../parse-port.ts';
import { progressView } from '../progress/view.ts';
import { openSession } from '../site-session.ts';

interface StartOptions {
  number?: number;
  host?: string;
  port?: number;
}

export function registerGateway(command: Command, context: CliContext): void {
  const gateway = command.addHelpText(
    'after',
    `
\`deploy\` starts the first one. All of them serve the same models to the same keys; each has a URL of its own, and
goes on when another ends.

Examples:
  $ hpcserve gateway start --host login2.cluster
  $ hpcserve gateway list
  $ hpcserve gateway stop 2`,
  );
  registerStart(gateway, context);
  registerList(gateway, context);
  registerStop(gateway, context);
}

function registerStart(gateway: Command, context: CliContext): void {
  gateway
    .command('start')
    .description(
      'Start a gateway beside those that run, on this machine or as a job, as the site config says',
    )
    .option('--number <n>', 'which one; default: the first that does not run', parseNumber)
    .option('--host <address>', 'address it listens on; default: as in the site config')
    .option('--port <port>', 'port it listens on; default: a free one, then kept', parsePort)
    .addHelpText('after', '\nExamples:\n  $ hpcserve gateway start\n  $ hpcserve gateway start --port 8001')
    .action(async (options: StartOptions) => {
      const view = progressView(context);
      try {
        const operations = openSession(context, {
          command: 'hpcserve gateway start',
          emit: (event) => view.show(event),
        });
        const number = options.number ?? firstFree(await inspectGateways(operations.store.layout));
        const { endpoint, started } = await ensureGateway(operations, number, {
          host: options.host,
          port: options.port,
        });
        const url = baseUrl(endpoint);
        const layout = layoutOf(operations.store.layout, number);
        for (const message of await warningLines(operations.loaded.site, layout, endpoint))
          operations.emit({ at_ms: operations.now_ms(), kind: 'warning', message });
        const ways = waysOf(endpoint);
        if (context.json) return context.out(JSON.stringify({ number, url, started, ...ways }));
        context.out(url);
        for (const line of wayLines(url, ways)) context.note(line);
        context.note(
          started ? `gateway ${number} runs` : `gateway ${number} ran already, and was left as it is`,
        );
      } finally {
        view.close();
      }
    });
}

function registerList(gateway: Command, context: CliContext): void {
  gateway
    .command('list')
    .description('List the gateways of the site, and whether they answer')
    .addHelpText('after', '\nExamples:\n  $ hpcserve gateway list\n  $ hpcserve gateway list --json')
    .action(async () => {
      const operations = openSession(context, { command: 'hpcserve gateway list' });
      const gateways = await listGateways(operations.store.layout);
      if (context.json) return context.out(JSON.stringify({ gateways }));
      if (gateways.length === 0) return context.note('no gateway of this site has run yet');
      for (const line of fittedTable(
        ['GATEWAY', 'STATE', 'URL', 'HOST', 'RELAYS BY', 'BECAUSE'].map((title) => ({ title })),
        gateways.map(({ number, state, url, hostname, relays, because }) => [
          String(number),
          state.replace('_', ' '),
          url ?? '-',
          hostname ?? '-',
          relays ? (describeProcesses(relays) ?? 'itself') : '-',
          because ?? '',
        ]),
        textWidth(context),
      ))
        context.out(line);
    });
}

/** A gateway of the site, as `--json` shows it. */
interface ListedGateway {
  number: number;
  state: GatewayStatus['state'];
  url?: string;
  hostname?: string;
  job_id?: string | undefined;
  because?: string;
  /** The processes that relay its requests, while it runs. */
  relays?: ProcessesReport;
  folder: string;
}

async function listGateways(layoutOfSite: StateLayout): Promise<ListedGateway[]> {
  const found = await inspectGateways(layoutOfSite);
  return Promise.all(
    found.map(async ({ number, layout, status }) => {
      const listed: ListedGateway = { number, state: status.state, folder: layout.gateway_folder };
      if (status.state !== 'not_running') {
        listed.url = baseUrl(status.endpoint);
        listed.hostname = status.endpoint.hostname;
        listed.job_id = status.endpoint.job_id;
      }
      if ('because' in status) listed.because = status.because;
      const relays = await inspectProcesses(layout, status);
      if (relays) listed.relays = relays;
      return listed;
    }),
  );
}

function registerStop(gateway: Command, context: CliContext): void {
  gateway
    .command('stop <number>')
    .description('End one gateway; the others go on')
    .addHelpText('after', '\nExamples:\n  $ hpcserve gateway stop 2')
    .action(async (text: string) => {
      const number = parseNumber(text);
      const operations = openSession(context, { command: 'hpcserve gateway stop' });
      const known = await inspectGateways(operations.store.layout);
      if (!known.some((each) => each.number === number))
        throw new HpcserveError('E_USAGE', {
          what: `there is no gateway ${number}`,
          because:
            known.length > 0 ? `there is ${known.map((each) => each.number).join(', ')}` : 'none has run yet',
        });
      await stopGateway(operations, number);
      if (context.json) context.out(JSON.stringify({ number, stopped: true }));
      else context.note(`gateway ${number} is stopped`);
    });
}

function firstFree(gateways: Awaited<ReturnType<typeof inspectGateways>>): number {
  const taken = new Set(
    gateways.filter(({ status }) => status.state !== 'not_running').map(({ number }) => number),
  );
  let number = 1;
  while (taken.has(number)) number++;
  return number;
}

function parseNumber(text: string): number {
  if (!/^[1-9]\d{0,3}$/.test(text)) throw new InvalidArgumentError('a number from 1 to 9999.');
  return Number(text);
}
