/**
 * Process that starts a gateway and holds its listening sockets: `node dist/gateway/holder/main.js --config FILE`. With
 * `--adopt PID` it is a child of the gateway, whose first holder was killed. Logs JSON lines on stdout, as the gateway
 * does.
 */
import { parseArgs } from 'node:util';
import { LogOutput } from '../../host/log-output.ts';
import { Holder } from './holder.ts';
import { inheritArguments, inheritedOf } from './messages.ts';

const log = new LogOutput(1);
process.stderr.on('error', () => undefined);
// Node itself would open its debugger on Slurm's warning of the time limit.
process.on('SIGUSR1', () => undefined);

const { values } = parseArgs({
  options: { config: { type: 'string' }, adopt: { type: 'string' }, ...inheritArguments },
});
if (values.config === undefined) {
  process.stderr.write('usage: gateway/holder/main.js --config FILE\n');
  process.exit(2);
}
const adopted = values.adopt === undefined ? undefined : Number(values.adopt);
const holder = new Holder({
  config_file: values.config,
  say: (level, words) =>
    log.write(
      `${JSON.stringify({ level: level === 'warn' ? 40 : 30, time: Date.now(), pid: process.pid, msg: words })}\n`,
    ),
  end: (code) => process.exit(code),
  // Started over a channel, it ends with who is at its other side, who may be gone by now.
  is_attached: adopted === undefined && process.connected !== undefined,
});
for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => holder.stop(signal));
if (adopted !== undefined) holder.adopt(adopted, inheritedOf(values));
else if (process.connected === false) process.exit(1);
else {
  process.once('disconnect', () => holder.stop('SIGTERM'));
  holder.start();
}
