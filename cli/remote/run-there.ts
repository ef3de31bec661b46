/**
 * A command of a site over ssh runs on its login node, where all state is; this machine brings files and shows what is
 * printed.
 */
import { writeFileSync } from 'node:fs';
import { isAbsolute, resolve } from 'node:path';
import type { Command } from 'commander';
import type { LoadedSite } from '../../control/state/site-files.ts';
import type { ExecOptions, SshConnection } from '../../slurm/ssh/connection.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { CliContext } from '../context.ts';
import { exitCodeOf } from './remote-exit.ts';
import { openRemoteSite } from './remote-site.ts';
import { useRemoteTerminal } from './remote-terminal.ts';
import { UploadSet } from './upload-set.ts';

/** Those that a person uses at a terminal, which must be theirs there too. */
const terminalCommands: ReadonlySet<string> = new Set(['shell', 'top', 'conversation']);
/** Those that ask a person, or draw how far they are, on stderr: where they can here, they can there. */
const drawingCommands: ReadonlySet<string> = new Set([
  'deploy',
  'plan',
  'stop',
  'forget',
  'gateway',
  'keep',
  'backfill',
]);
/** Those that read what is piped into them. Others leave it alone, as they do here: a loop of a shell may read it. */
const inputCommands: ReadonlySet<string> = new Set(['shell', 'conversation']);
/** Options whose value is a file here, by what becomes of it. */
const fileOptions: Readonly<Record<string, 'bring' | 'fetch' | 'refuse'>> = {
  '--plan': 'bring',
  '--out': 'fetch',
  '--output-script': 'refuse',
};
/** What this machine has said already, with their values. */
const localOptions = new Set(['--site', '--state-dir', '--progress']);

/** @returns the exit code there */
export async function runThere(
  context: CliContext,
  loaded: LoadedSite,
  command: Command,
  argv: readonly string[],
): Promise<number> {
  const { connection, program, folder } = await openRemoteSite(context, loaded.site);
  try {
    using uploads = new UploadSet(connection, folder, context);
    const site = await uploads.site(loaded.path);
    const { words, fetched } = await translated(argv, {
      ...{ context, command, uploads, folder },
      site: loaded.site.name,
      host: connection.target.host,
    });
    const atTerminal = usesTerminal(context, command);
    // What follows -- is not for hpcserve: the site comes before it.
    const end = words.indexOf('--');
    words.splice(end < 0 ? words.length : end, 0, '--site', site, ...progressThere(context, atTerminal));
    const code = atTerminal
      ? await useRemoteTerminal(
          connection,
          [...likeHere(context), ...program, ...words],
          context.environment.TERM,
        )
      : await runPlainly(context, command, connection, [...program, ...words]);
    for (const each of fetched) {
      const { code: read, stdout } = await connection.exec(['cat', '--', each.there]);
      if (read === 0) writeFileSync(each.here, stdout, { mode: 0o600 });
      await connection.exec(['rm', '-f', '--', each.there]);
    }
    if (code === 0 && command.name() === 'deploy' && !context.json)
      context.note(
        `the URL is one of ${connection.target.host}; bring it here with: hpcserve connect --site ${loaded.site.name}`,
      );
    return code;
  } finally {
    connection.close();
  }
}

async function runPlainly(
  context: CliContext,
  command: Command,
  connection: SshConnection,
  argv: readonly string[],
): Promise<number> {
  const options: ExecOptions = { output: process, signal: context.signal };
  if (inputCommands.has(usedAs(command)) && !context.tty.stdin) options.input = process.stdin;
  return exitCodeOf(await connection.exec(argv, options));
}

function usesTerminal({ tty, json, command: top = '' }: CliContext, command: Command): boolean {
  if (!tty.stdin || !tty.stdout) return false;
  const used = usedAs(command);
  // JSON is no conversation: as here, it wants a prompt.
  if (terminalCommands.has(used)) return !(used === 'conversation' && json);
  const draws = drawingCommands.has(top) || (used === 'status' && command.opts().watch === true);
  // Both outputs are one there: each must be the terminal here.
  return draws && tty.stderr;
}

/** As it was asked for here; plain lines where there is no terminal to draw on, and JSON with --json. */
function progressThere({ json, configuration }: CliContext, atTerminal: boolean): string[] {
  const asked = configuration.get('progress');
  if (asked !== undefined && asked !== 'auto') return ['--progress', asked];
  return json || atTerminal ? [] : ['--progress', 'plain'];
}

/** Who wants no colours here wants none there: the environment does not come along. */
function likeHere({ environment }: CliContext): string[] {
  return environment.NO_COLOR ? ['env', 'NO_COLOR=1'] : [];
}

function usedAs(command: Command): string {
  return isConversation(command) ? 'conversation' : command.name();
}

/** `chat` with a model and no prompt: at a terminal a conversation, else the prompt comes from stdin. */
function isConversation(command: Command): boolean {
  return command.name() === 'chat' && command.args.length === 1;
}

interface There {
  context: CliContext;
  command: Command;
  uploads: UploadSet;
  folder: string;
  site: string;
  host: string;
}

/**
 * The command line as it is to be there: files of this machine are brought, and those that it writes lie in a folder
 * there until they are fetched. Behind -- there are no options of hpcserve.
 */
async function translated(
  argv: readonly string[],
  { context, command, uploads, folder, site, host }: There,
): Promise<{ words: string[]; fetched: { there: string; here: string }[] }> {
  const words: string[] = [];
  const fetched: { there: string; here: string }[] = [];
  const [file] = takesFile(command) ? command.args : [];
  const operand = async (word: string): Promise<string> =>
    word === file ? await uploads.deployment(here(context, word)) : word;
  for (let at = 0; at < argv.length; at++) {
    if (argv[at] === '--') {
      words.push('--');
      for (const word of argv.slice(at + 1)) words.push(await operand(word));
      break;
    }
    const [name, attached] = splitOption(argv[at]!);
    if (localOptions.has(name)) {
      if (attached === undefined) at++;
      continue;
    }
    const handling = fileOptions[name];
    if (handling === undefined) {
      words.push(await operand(argv[at]!));
      continue;
    }
    const value = attached ?? argv[++at] ?? '';
    if (handling === 'refuse')
      throw new HpcserveError('E_CONFIG_UNSUPPORTED', {
        what: `${name} writes a folder, which does not come over ssh`,
        because: `${site} is reached by ssh to ${host}`,
        try: ['leave it out: the scripts come on stdout', `or run the command on ${host}`],
      });
    if (handling === 'bring') words.push(name, await uploads.file(here(context, value)));
    else {
      const there = `${folder}/fetched-${fetched.length}`;
      fetched.push({ there, here: here(context, value) });
      words.push(name, there);
    }
  }
  return { words, fetched };
}

/** The first argument of these is a model.yaml of this machine. */
function takesFile(command: Command): boolean {
  return ['deploy', 'plan', 'render'].includes(command.name());
}

function splitOption(word: string): [name: string, value: string | undefined] {
  const at = word.indexOf('=');
  return word.startsWith('--') && at > 0 ? [word.slice(0, at), word.slice(at + 1)] : [word, undefined];
}

function here(context: CliContext, path: string): string {
  return isAbsolute(path) ? path : resolve(context.working_folder, path);
}
