/** The program of the gateway, which main.ts describes. */
import { parseArgs } from 'node:util';
import { pino } from 'pino';
import { LogOutput } from '../host/log-output.ts';
import { returnFreedMemory } from '../native/malloc.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { readGatewayConfig } from './config.ts';
import { type GatewayOptions, startGateway } from './gateway.ts';
import { writeHolder } from './gateway-files.ts';
import { HolderLink } from './holder/holder-link.ts';
import { inheritArguments, inheritedOf } from './holder/messages.ts';
import { workerOption } from './processes/messages.ts';
import { runWorker } from './processes/run-worker.ts';

const log = pino(
  { base: { pid: process.pid }, level: process.env.HPCSERVE_LOG_LEVEL ?? 'info' },
  new LogOutput(1),
);
// Bodies of many megabytes come and go for weeks.
returnFreedMemory();
// Warnings of Node and the last words go to the same file; that it takes none now must not end anything.
process.stderr.on('error', () => undefined);

try {
  const { values } = parseArgs({
    options: {
      config: { type: 'string' },
      attached: { type: 'boolean' },
      [workerOption]: { type: 'string' },
      ...inheritArguments,
    },
  });
  if (values[workerOption] === undefined) await runPrimary({ ...values, inherited: inheritedOf(values) });
  else runWorker(log);
} catch (error) {
  fail(error);
}

interface GatewayArguments {
  config?: string | undefined;
  attached?: boolean | undefined;
  inherited: GatewayOptions['inherited'];
}

async function runPrimary({ config: config_file, attached, inherited }: GatewayArguments): Promise<void> {
  // Slurm's warning of the time limit goes to every process of a step; Node itself would open its debugger on it.
  process.on('SIGUSR1', () => log.info('the time limit of the job comes near'));
  if (config_file === undefined) {
    process.stderr.write('usage: gateway/main.js --config FILE\n');
    process.exit(2);
  }
  const config = readGatewayConfig(config_file);
  const holder = HolderLink.ofParent({
    config_file,
    log,
    onHeldBy: (pid) => writeHolder(config.gateway_folder, pid),
    onLeft: attached ? () => process.kill(process.pid, 'SIGTERM') : undefined,
  });
  const gateway = await startGateway(config, {
    log,
    onLost: () => process.exit(10),
    holder,
    inherited,
  });
  const stop = (): void => {
    gateway.close().then(
      () => process.exit(0),
      (error: unknown) => fail(error),
    );
  };
  // Slurm, the keeper beside it and a script may all say so: answers still end. Who types Ctrl-C twice means it.
  process.on('SIGTERM', stop);
  process.once('SIGINT', stop);
}

function fail(error: unknown): never {
  const known = HpcserveError.from(error);
  log.error({ error: known.toJSON(), stack: known.stack }, 'gateway cannot run');
  process.stderr.write(`${known.toText()}\n`);
  process.exit(known.exit_code);
}
