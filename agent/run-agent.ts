/** The program of the node agent, which main.ts describes. */
import { parseArgs } from 'node:util';
import { returnFreedMemory } from '../native/malloc.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { reportEngine } from './node/engine-report.ts';
import { readLaunchFile } from './node/launch-file.ts';
import { NodeAgent } from './node/node-agent.ts';
import { nodeIdentity } from './node/slurm-environment.ts';

const usage_exit_code = 2;

async function main(): Promise<number> {
  returnFreedMemory();
  let agent: NodeAgent | undefined;
  let asked: string | undefined;
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) {
    process.on(signal, () => {
      asked ??= `received ${signal}`;
      agent?.stop(`received ${signal}`);
    });
  }
  // Node itself would open its debugger on this signal: taken over before anything else happens.
  process.on('SIGUSR1', () => agent?.warnOfWalltime());
  // Slurm sends it before the TERM of a preemption, and to jobs that it had suspended.
  process.on('SIGCONT', () => agent?.resumed());

  // Who started the agent may be gone and with it the other end of stderr; the log file has everything.
  process.stderr.on('error', () => undefined);
  process.on('uncaughtException', (thrown) => {
    process.stderr.write(`${thrown.stack ?? thrown}\n`);
    const error = HpcserveError.from(thrown);
    if (!agent) process.exit(error.exit_code);
    agent.fail(error);
  });

  const values = readArguments();
  if (values?.probe !== undefined) return probe(values.probe, values.words);
  const index = values?.['node-index'];
  if (!values?.launch || values.words.length > 0 || (index !== undefined && !/^\d+$/.test(index))) {
    process.stderr.write('usage: main.js --launch FILE [--node-index N] [--node NAME]\n');
    return usage_exit_code;
  }
  process.umask(0o077);
  const launch = readLaunchFile(values.launch);
  const identity = nodeIdentity(
    process.env,
    {
      ...(values.node === undefined ? {} : { node: values.node }),
      ...(index === undefined ? {} : { node_index: Number(index) }),
    },
    launch.node_count,
  );
  agent = new NodeAgent(launch, identity, process.env);
  if (asked !== undefined) agent.stop(asked);
  return agent.run();
}

/** Says what an installed engine can do, as JSON. */
async function probe(engine: string, prefix: readonly string[]): Promise<number> {
  const report = await reportEngine(engine, prefix, process.env);
  if (report !== undefined) process.stdout.write(`${JSON.stringify(report)}\n`);
  else process.stderr.write(`${engine} does not say what it can do\n`);
  return report === undefined ? 1 : 0;
}

interface Arguments {
  launch?: string;
  'node-index'?: string;
  node?: string;
  probe?: string;
  /** Those behind `--`. */
  words: string[];
}

/** The options given; undefined, with a word on stderr, where one is not known. */
function readArguments(): Arguments | undefined {
  try {
    const { values, positionals } = parseArgs({
      options: {
        launch: { type: 'string' },
        'node-index': { type: 'string' },
        node: { type: 'string' },
        probe: { type: 'string' },
      },
      allowPositionals: true,
    });
    return { ...values, words: positionals };
  } catch (error) {
    if (!String((error as NodeJS.ErrnoException).code).startsWith('ERR_PARSE_ARGS')) throw error;
    process.stderr.write(`${(error as Error).message}\n`);
    return undefined;
  }
}

main().then(
  (code) => process.exit(code),
  (thrown: unknown) => {
    const error = HpcserveError.from(thrown);
    process.stderr.write(`${error.toText()}\n`);
    if (error.code === 'E_INTERNAL') process.stderr.write(`${(error.cause as Error)?.stack ?? ''}\n`);
    process.exit(error.exit_code);
  },
);
