/**
 * The `hpcserve` command: builds the program, runs one command, and turns every outcome into words and an exit code.
 */
import { CommanderError } from 'commander';
import { HpcserveError } from '../spec/errors/error.ts';
import { errorRegistry } from '../spec/errors/registry.ts';
import { commandList } from './command-list.ts';
import { Configuration } from './config/configuration.ts';
import type { CliContext } from './context.ts';
import { printable, style, wantsColour } from './format/style.ts';
import { buildProgram, runCommandLine } from './program.ts';
import { RemoteExit } from './remote/remote-exit.ts';

const interruption = new AbortController();
const interrupt = (): void => interruption.abort(new Error('interrupted'));

function createContext(): CliContext {
  const configuration = new Configuration({ environment: process.env, working_folder: process.cwd() });
  return {
    out: (line) => void process.stdout.write(`${line}\n`),
    note: (line) => void process.stderr.write(`${line}\n`),
    write: (text) => void process.stdout.write(text),
    json: false,
    colour: wantsColour(process.env, process.stderr.isTTY === true),
    tty: {
      stdin: process.stdin.isTTY === true,
      stdout: process.stdout.isTTY === true,
      stderr: process.stderr.isTTY === true,
    },
    columns: process.stdout.columns ?? 100,
    environment: process.env,
    working_folder: process.cwd(),
    configuration,
    signal: interruption.signal,
    interrupt,
    now_ms: () => Date.now(),
    confirm: askYesOrNo,
  };
}

async function askYesOrNo(question: string): Promise<boolean> {
  if (!process.stdin.isTTY || !process.stderr.isTTY)
    throw new HpcserveError('E_CONFIRM', { what: question, because: 'there is no terminal to ask at' });
  const { createInterface } = await import('node:readline/promises');
  const terminal = createInterface({ input: process.stdin, output: process.stderr });
  // Ctrl-D, which answers nothing.
  const closed = new Promise<string>((resolve) => terminal.once('close', () => resolve('')));
  // Ctrl-C is a key here, no signal.
  terminal.once('SIGINT', interrupt);
  try {
    const asked = terminal.question(`${question} [y/N] `, { signal: interruption.signal });
    const answer = await Promise.race([asked, closed]);
    return /^y(es)?$/i.test(answer.trim());
  } catch (error) {
    if (!interruption.signal.aborted) throw error;
    process.stderr.write('\n');
    throw new HpcserveError('E_INTERRUPTED', {
      what: 'nothing was changed',
      because: 'the question was interrupted',
      try: 'run the command again, and answer it or give --yes',
    });
  } finally {
    terminal.close();
  }
}

/** What commander found wrong with the command line, as our error. */
function usageError(error: CommanderError): HpcserveError {
  const [first = '', ...rest] = error.message.replace(/^error: /, '').split('\n');
  const suggestion = rest.join(' ').match(/\(Did you mean (.*)\?\)/)?.[1];
  return new HpcserveError('E_USAGE', {
    // `argument 'abc' is invalid. a number.`: what commander says, and what we do.
    what: first.trim().replace(/ is invalid\. (\S.*?)\.?$/, ' is invalid: it takes $1'),
    ...(suggestion ? { try: `did you mean "${suggestion}"?` } : {}),
  });
}

function report(context: CliContext, error: HpcserveError): void {
  if (context.json) context.note(JSON.stringify({ error: error.toJSON() }));
  else {
    const [what = '', ...rest] = printable(error.toText()).split('\n');
    context.note([style('red', what, context.colour), ...rest].join('\n'));
  }
  if (process.env.HPCSERVE_DEBUG === '1') {
    for (let each: unknown = error; each instanceof Error; each = each.cause) context.note(each.stack ?? '');
  }
}

/** What Ctrl-C leaves behind, in words; undefined where the command only showed something, and Ctrl-C is its end. */
function interrupted(thrown: unknown, context: CliContext): HpcserveError | undefined {
  if (thrown instanceof HpcserveError && thrown.code === 'E_INTERRUPTED') return thrown;
  const hint = context.command === undefined ? undefined : commandList[context.command]?.interrupted;
  if (hint === undefined && !context.json) return undefined;
  return new HpcserveError('E_INTERRUPTED', { what: 'interrupted', try: hint });
}
const exitCode_interrupted = errorRegistry.E_INTERRUPTED.exit_code;

const context = createContext();

/**
 * `hpcserve status | head`: the reader left, which is no error. What holds something (processes, jobs, a connection)
 * says the rest to nobody and ends in order, as by Ctrl-C. What only shows something ends here; so does what runs on
 * another machine, where it finds out the same when its output goes nowhere.
 */
function loseReader(): void {
  const { command, remote } = context;
  if (command === undefined || remote || commandList[command]?.shows) process.exit(0);
  interrupt();
}

async function main(): Promise<number> {
  // Whether errors are JSON must be known before the command line is understood.
  context.json = process.argv.slice(2).includes('--json');
  try {
    await runCommandLine(buildProgram(context), process.argv.slice(2));
    return 0;
  } catch (thrown) {
    if (thrown instanceof RemoteExit) return thrown.exit_code;
    if (thrown instanceof CommanderError) {
      if (thrown.exitCode === 0) return 0;
      const error = usageError(thrown);
      // `hpcserve` alone prints its help, which is all there is to say.
      if (thrown.code !== 'commander.help') report(context, error);
      return error.exit_code;
    }
    const error = interruption.signal.aborted ? interrupted(thrown, context) : HpcserveError.from(thrown);
    if (error) report(context, error);
    return error?.exit_code ?? exitCode_interrupted;
  }
}

// The first Ctrl-C lets the command end in order; a second one ends it at once.
process.once('SIGINT', () => {
  interrupt();
  process.once('SIGINT', () => process.exit(130));
});
process.once('SIGTERM', () => interruption.abort(new Error('terminated')));
for (const stream of [process.stdout, process.stderr])
  stream.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') loseReader();
    // A terminal that is gone: what is to be ended in order has nobody to tell.
    else if (error.code !== 'EIO') throw error;
  });

process.exitCode = await main();
