/** The command tree: global options here, one file a command in `commands/`, loaded when it is typed. */
import { Command, Help, Option } from 'commander';
import type { LoadedSite } from '../control/state/site-files.ts';
import { version } from '../host/version.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { commandList } from './command-list.ts';
import type { CommandTree } from './command-tree.ts';
import type { ConfigKey } from './config/config-schema.ts';
import type { CliContext } from './context.ts';
import { remoteCommands } from './remote/remote-commands.ts';
import { RemoteExit } from './remote/remote-exit.ts';

/** Flags that stand for a configuration key, by commander's name of the option. */
const flagKeys: Readonly<Record<string, { key: ConfigKey; flag: string }>> = {
  site: { key: 'site', flag: '--site' },
  stateDir: { key: 'state_dir', flag: '--state-dir' },
  url: { key: 'url', flag: '--url' },
  progress: { key: 'progress', flag: '--progress' },
  partition: { key: 'slurm.partition', flag: '--partition' },
  account: { key: 'slurm.account', flag: '--account' },
  qos: { key: 'slurm.qos', flag: '--qos' },
  reservation: { key: 'slurm.reservation', flag: '--reservation' },
  constraint: { key: 'slurm.constraint', flag: '--constraint' },
  time: { key: 'slurm.time_limit', flag: '--time' },
  timeout: { key: 'deploy_timeout_s', flag: '--timeout' },
};

/** A site over ssh: the command runs on its login node. @throws RemoteExit with its exit code */
async function elsewhere(context: CliContext, command: Command): Promise<void> {
  const top = topCommand(command);
  // With a URL the gateway is asked as it is; nothing of the site is needed.
  if (!remoteCommands.has(top.name()) || context.configuration.get('url') !== undefined) return;
  // On several sites the command itself goes where it is to run.
  if (command.opts().sites !== undefined) return;
  const loaded = await siteOfCommand(context, top);
  if (loaded?.site.slurm?.ssh === undefined) return;
  context.remote = true;
  const { runThere } = await import('./remote/run-there.ts');
  throw new RemoteExit(await runThere(context, loaded, command, process.argv.slice(2)));
}

/** `keys` of `keys create`. */
function topCommand(command: Command): Command {
  return command.parent?.parent ? topCommand(command.parent) : command;
}

/** Undefined where the command itself will say what is wrong with its file or site. */
async function siteOfCommand(context: CliContext, command: Command): Promise<LoadedSite | undefined> {
  // Half of what a command loads, and those that stay here may do without.
  const { openSite, readSpec } = await import('./site-session.ts');
  try {
    const [file] = ['deploy', 'plan', 'render'].includes(command.name()) ? command.args : [];
    return openSite(context, file === undefined ? undefined : readSpec(context, file).spec);
  } catch (error) {
    if (error instanceof HpcserveError) return undefined;
    throw error;
  }
}

/** All that can be typed, by its outline alone. */
export function buildProgram(context: CliContext): CommandTree {
  const named = new Command('hpcserve').version(version, '-V, --version', 'print the version');
  const program = withGlobalOptions(named)
    .description('Serve language models on Slurm clusters: one OpenAI-compatible URL that outlives the jobs.')
    .helpOption('-h, --help', 'print help, with examples')
    .configureHelp({ showGlobalOptions: true, sortSubcommands: false, subcommandTerm })
    .configureOutput({
      writeOut: (text) => void process.stdout.write(text),
      writeErr: (text) => void process.stderr.write(text),
      // Printed once, by main.ts, in the form of all errors.
      outputError: () => {},
    })
    .showSuggestionAfterError(true)
    .hook('preAction', async (_program, command) => {
      const options = command.optsWithGlobals() as Record<string, unknown>;
      context.json = options.json === true;
      context.command = topCommand(command).name();
      for (const [name, { key, flag }] of Object.entries(flagKeys))
        context.configuration.setFlag(key, flag, options[name]);
      await elsewhere(context, command);
    })
    .addHelpText('after', examples);
  for (const [name, { takes = '', says, hidden = false }] of Object.entries(commandList))
    program.command(`${name} ${takes}`, { hidden }).description(says);
  const loaded = new Set<Command>();
  const tree: CommandTree = {
    program,
    load: async (command) => {
      const outline = command.parent === program ? commandList[command.name()] : undefined;
      if (!outline || loaded.has(command)) return;
      loaded.add(command);
      (await outline.register())(command, context, tree);
    },
  };
  return tree;
}

/** Runs what was typed. @param words behind `hpcserve` */
export async function runCommandLine(
  { program, load }: CommandTree,
  words: readonly string[],
): Promise<void> {
  const typed = typedCommand(words);
  const command = program.commands.find((each) => each.name() === typed);
  if (command) await load(command);
  await program.parseAsync(words, { from: 'user' });
}

/** Options of the whole program may stand before it, and `help`. */
function typedCommand(words: readonly string[]): string | undefined {
  const { operands } = withGlobalOptions(new Command()).parseOptions([...words]);
  return operands[0] === 'help' ? operands[1] : operands[0];
}

function withGlobalOptions(command: Command): Command {
  return command
    .option('--site <name>', 'site config to use: a name or a path')
    .option('--state-dir <folder>', 'state folder, instead of that of the site config')
    .addOption(
      new Option('--progress <kind>', 'how progress is shown').choices(['auto', 'tty', 'plain', 'json']),
    )
    .option('--json', 'data as one JSON object, or as JSON lines, on stdout')
    .exitOverride();
}

/** As commander writes it; whether a command that is not loaded has options is in the list. */
function subcommandTerm(this: Help, command: Command): string {
  const term = Help.prototype.subcommandTerm.call(this, command);
  const outline = command.parent?.parent ? undefined : commandList[command.name()];
  if (!outline?.options || command.options.length > 0) return term;
  return term.replace(command.name(), `${command.name()} [options]`);
}

const examples = `
Examples:
  $ hpcserve init                      write a site config from what Slurm says of itself
  $ hpcserve deploy model.yaml         submit, follow, and end with URL and key
  $ hpcserve status                    what runs, what waits and why
  $ hpcserve chat my-model "Hello"     ask it something
  $ hpcserve stop my-deployment        end its jobs

Exit codes: 0 success, 2 wrong usage, 3 configuration, 4 model, 5 no placement, 6 Slurm refused,
7 unreachable, 8 deployment failed, 9 no such thing, 10 conflict, 13 a check failed (docs/errors.md).`;
