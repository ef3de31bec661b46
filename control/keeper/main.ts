/** Entry of the keeper as a process of its own: `--site FILE --state-dir FOLDER`. Its log is one JSON object a line. */
import { userInfo } from 'node:os';
import { parseArgs } from 'node:util';
import { HpcserveError } from '../../spec/errors/error.ts';
import { readSite } from '../site-files.ts';
import { Keeper } from './keeper.ts';
import { withKeeperLock } from './keeper-lock.ts';

const interruption = new AbortController();
for (const name of ['SIGTERM', 'SIGINT'] as const)
  process.once(name, () => interruption.abort(new Error(`ended by ${name}`)));

const say = (line: object): void => void process.stdout.write(`${JSON.stringify(line)}\n`);

async function main(): Promise<number> {
  const { values } = parseArgs({ options: { site: { type: 'string' }, 'state-dir': { type: 'string' } } });
  const { site, 'state-dir': stateDir } = values;
  if (site === undefined || stateDir === undefined) throw new Error('--site and --state-dir are needed');
  const loaded = readSite(
    site,
    { user_folder: '', site_wide_folder: '', working_folder: process.cwd(), environment: process.env },
    stateDir,
  );
  const keeper = new Keeper({
    input: {
      loaded,
      facts: { user: userInfo().username, environment: process.env },
      command: 'hpcserve keep',
      now_ms: () => Date.now(),
      signal: interruption.signal,
    },
    emit: say,
    end_when_idle: true,
  });
  await withKeeperLock(loaded.layout, 'hpcserve keep', () => keeper.run());
  return 0;
}

process.exitCode = await main().catch((thrown: unknown) => {
  const error = HpcserveError.from(thrown);
  say({ at_ms: Date.now(), kind: 'failed', error: error.toJSON() });
  return error.exit_code;
});
