/** The program of the keeper, which main.ts describes. */
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { LogOutput } from '../../host/log-output.ts';
import { ownUser } from '../../host/own-user.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type Operations, type OperationsInput, openOperations } from '../runner/operations.ts';
import { readSite } from '../state/site-files.ts';
import { ColocatedGateway } from './colocated-gateway.ts';
import { Keeper } from './keeper.ts';
import { withKeeperLock } from './keeper-lock.ts';

const interruption = new AbortController();
// Slurm may say so more than once, and the gateway beside it still drains; who types Ctrl-C twice means it.
process.on('SIGTERM', () => interruption.abort(new Error('ended by SIGTERM')));
process.once('SIGINT', () => interruption.abort(new Error('ended by SIGINT')));
// Node itself would open its debugger on this signal: taken over before anything else happens.
let warn: () => void = () => undefined;
process.on('SIGUSR1', () => warn());

const log = new LogOutput(1);
const say = (line: object): void => log.write(`${JSON.stringify(line)}\n`);
process.stderr.on('error', () => undefined);

/**
 * Another keeper, on a login node or in a job that was killed, may hold the lock for a while; a folder may be away, ms.
 */
const retry_ms = 15_000;

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      site: { type: 'string' },
      'state-dir': { type: 'string' },
      'gateway-config': { type: 'string' },
    },
  });
  const { site, 'state-dir': stateDir, 'gateway-config': config } = values;
  if (site === undefined || stateDir === undefined) throw new Error('--site and --state-dir are needed');
  const loaded = readSite(
    site,
    { user_folder: '', site_wide_folder: '', working_folder: process.cwd(), environment: process.env },
    stateDir,
  );
  const input: Omit<OperationsInput, 'emit'> = {
    loaded,
    facts: { user: ownUser().name, environment: process.env },
    command: 'hpcserve keep',
    now_ms: () => Date.now(),
    signal: interruption.signal,
  };
  const keep = (options: { end_when_idle: boolean; leaves_first_gateway?: boolean }): Promise<void> =>
    withKeeperLock(loaded.layout, 'hpcserve keep', () => new Keeper({ input, emit: say, ...options }).run());
  if (config === undefined) {
    await keep({ end_when_idle: true });
    return 0;
  }
  return besideGateway(config, openOperations({ ...input, emit: say }), () =>
    keep({ end_when_idle: false, leaves_first_gateway: true }),
  );
}

async function besideGateway(
  config: string,
  operations: Operations,
  keep: () => Promise<void>,
): Promise<number> {
  const gateway = new ColocatedGateway(config, interruption.signal, say);
  const { SLURM_JOB_ID: job_id } = process.env;
  warn = () => {
    if (job_id !== undefined) void gateway.renew(operations, job_id);
  };
  const ended = gateway.run().finally(() => interruption.abort(new Error('the gateway ended')));
  for (let told = ''; !interruption.signal.aborted; ) {
    try {
      await keep();
    } catch (thrown) {
      if (interruption.signal.aborted) break;
      // The job and its gateway go on, so this does: a filesystem that is away comes back.
      const { code, message, because } = HpcserveError.from(thrown);
      const reason = [message, ...because].join(': ');
      if (code !== 'E_KEEPER_RUNNING' && reason !== told)
        say({ at_ms: Date.now(), kind: 'warning', message: `deployments are not kept: ${reason} [${code}]` });
      told = reason;
      await sleep(retry_ms, undefined, { signal: interruption.signal }).catch(() => undefined); // it ends
    }
  }
  return ended;
}

process.exitCode = await main().catch((thrown: unknown) => {
  const error = HpcserveError.from(thrown);
  say({ at_ms: Date.now(), kind: 'failed', error: error.toJSON() });
  return error.exit_code;
});
