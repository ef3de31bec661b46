import { setTimeout as sleep } from 'node:timers/promises';
import { type Command, Option } from 'commander';
import type { SharedDevice, SleepingEngine } from '../../control/gateway/admin.ts';
import { readGranularityFile, type SeenPipeline } from '../../control/pipelines/granularity-file.ts';
import type { DeviceReport } from '../../spec/device-report.ts';
import { openAdmin } from '../admin-session.ts';
import type { CliContext } from '../context.ts';
import { deviceLines } from '../format/device-text.ts';
import { granularityLines } from '../format/granularity-text.ts';
import { sleepingLines } from '../format/sleeping-engines.ts';
import { printable } from '../format/style.ts';
import { textWidth, wrap } from '../format/wrap.ts';
import { parseSeconds } from '../parse-seconds.ts';
import { openSite } from '../site-session.ts';
import { windowSize } from '../terminal.ts';

interface TopOptions {
  once?: true;
  interval: number;
  node?: string;
  decisions: string;
}

export function registerTop(command: Command, context: CliContext): void {
  command
    .option('--once', 'show it once')
    .addOption(new Option('--interval <time>', 'how often to look').argParser(parseSeconds).default(2, '2s'))
    .option('--node <name>', 'only this node')
    .addOption(
      new Option('--decisions <number>', 'last decisions of each device that are shown')
        .choices(['0', '5', '10', '20', '50'])
        .default('5'),
    )
    .addHelpText(
      'after',
      `
Asks the device workers of native models over the gateway, and the agents of wrapped engines that may sleep; for who
deployed it. Ctrl-C ends. With --json each look is one line. A promise is a model's slo in model.yaml (first token/each
further one); headroom is how long the most urgent request can still wait for its next token. See docs/sharing.md, and
docs/lifetimes.md for engines that sleep.

Examples:
  $ hpcserve top
  $ hpcserve top --once --decisions 20
  $ hpcserve top --json --once | jq '.devices[].report.memory.pss_bytes'`,
    )
    .action(async (options: TopOptions) => {
      const { admin } = await openAdmin(context);
      const { layout } = openSite(context);
      let before = new Map<string, DeviceReport>();
      for (;;) {
        const all = await admin.devicesAndEngines(context.signal);
        const isAsked = ({ node }: { node: string }): boolean =>
          options.node === undefined || node === options.node;
        const devices = all.devices.filter(isAsked);
        const engines = all.engines.filter(isAsked);
        const pipelines = readGranularityFile(layout);
        if (context.json) context.out(JSON.stringify({ devices, engines, pipelines }));
        else show(context, { devices, engines, pipelines }, before, options);
        if (options.once) return;
        before = new Map(devices.flatMap(({ session_id, report }) => (report ? [[session_id, report]] : [])));
        await sleep(Math.max(500, options.interval * 1000), undefined, { signal: context.signal });
      }
    });
}

interface Look {
  devices: readonly SharedDevice[];
  engines: readonly SleepingEngine[];
  pipelines: readonly SeenPipeline[];
}

/** On a terminal the screen is redrawn, cut to its height; elsewhere one look follows the other. */
function show(
  context: CliContext,
  { devices, engines, pipelines }: Look,
  before: ReadonlyMap<string, DeviceReport>,
  { once, decisions }: TopOptions,
): void {
  const redraws = context.tty.stdout && !once;
  // Asked each time: the window may have another size now.
  const { cols, rows } = redraws
    ? windowSize()
    : { cols: textWidth(context), rows: Number.POSITIVE_INFINITY };
  const colour = context.colour && context.tty.stdout;
  const parts = devices.map((device) =>
    deviceLines(device, {
      colour,
      width: cols,
      decisions: Number(decisions),
      before: before.get(device.session_id),
    }),
  );
  parts.push(...sleepingLines(engines, { colour, width: cols }));
  const lines = parts.flatMap((part, index) => (index > 0 ? ['', ...part] : part));
  for (const line of pipelines.flatMap((each) => granularityLines(each, context.now_ms())))
    lines.push(...wrap(printable(line), cols, 0));
  if (parts.length === 0) lines.push('no device that models share is in the mesh');
  if (!redraws) {
    for (const line of lines) context.out(line);
    return;
  }
  const hidden = lines.length - (rows - 1);
  const shown =
    hidden > 0
      ? [...lines.slice(0, rows - 2), `… ${hidden + 1} more lines: see --node, --decisions 0`]
      : lines;
  context.write(`\u001b[H\u001b[2J${shown.join('\n')}\n`);
}
