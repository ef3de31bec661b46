/** The command tree: global options here, one file a command in `commands/`. */
import { Command, Option } from 'commander';
import type { LoadedSite } from '../control/state/site-files.ts';
import { version } from '../host/version.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import type { ConfigKey } from './config/config-schema.ts';
import type { CliContext } from './context.ts';
import { remoteCommands } from './remote/remote-commands.ts';
import { RemoteExit } from './remote/remote-exit.ts';
import { openSite, readSpec } from './site-session.ts';

type Register = (program: Command, context: CliContext) => void;

/**
 * By the word that is typed, in the order of the help. Loaded when asked for: what one command needs takes half the
 * time to load of what all need.
 */
const commands: Readonly<Record<string, () => Promise<Register>>> = {
  init: async () => (await import('./commands/init.ts')).registerInit,
  deploy: async () => (await import('./commands/deploy.ts')).registerDeploy,
  plan: async () => (await import('./commands/plan.ts')).registerPlan,
  simulate: async () => (await import('./commands/simulate.ts')).registerSimulate,
  render: async () => (await import('./commands/render.ts')).registerRender,
  status: async () => (await import('./commands/status.ts')).registerStatus,
  logs: async () => (await import('./commands/logs.ts')).registerLogs,
  shell: async () => (await import('./commands/shell.ts')).registerShell,
  run: async () => (await import('./commands/run.ts')).registerRun,
  stop: async () => (await import('./commands/stop.ts')).registerStop,
  keep: async () => (await import('./commands/keep.ts')).registerKeep,
  backfill: async () => (await import('./commands/backfill.ts')).registerBackfill,
  chat: async () => (await import('./commands/chat.ts')).registerChat,
  models: async () => (await import('./commands/models.ts')).registerModels,
  model: async () => (await import('./commands/model.ts')).registerModelCommands,
  endpoint: async () => (await import('./commands/endpoint.ts')).registerEndpoint,
  gateway: async () => (await import('./commands/gateway.ts')).registerGateway,
  connect: async () => (await import('./commands/connect.ts')).registerConnect,
  keys: async () => (await import('./commands/keys.ts')).registerKeys,
  usage: async () => (await import('./commands/usage.ts')).registerUsage,
  top: async () => (await import('./commands/top.ts')).registerTop,
  provider: async () => (await import('./commands/provider.ts')).registerProvider,
  nodes: async () => (await import('./commands/nodes.ts')).registerNodes,
  sites: async () => (await import('./commands/sites.ts')).registerSites,
  native: async () => (await import('./commands/native.ts')).registerNative,
  doctor: async () => (await import('./commands/doctor.ts')).registerDoctor,
  config: async () => (await import('./commands/config.ts')).registerConfig,
  completion: async () => (await import('./commands/completion.ts')).registerCompletion,
};
/** It completes the words of all others. */
const needsAll = 'completion';

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
  const loaded = siteOfCommand(context, top);
  if (loaded?.site.slurm?.ssh === undefined) return;
  const { runThere } = await import('./remote/run-there.ts');
  throw new RemoteExit(await runThere(context, loaded, command, process.argv.slice(2)));
}

/** `keys` of `keys create`. */
function topCommand(command: Command): Command {
  return command.parent?.parent ? topCommand(command.parent) : command;
}

/** Undefined where the command itself will say what is wrong with its file or site. */
function siteOfCommand(context: CliContext, command: Command): LoadedSite | undefined {
  try {
    const [file] = ['deploy', 'plan', 'render'].includes(command.name()) ? command.args : [];
    return openSite(context, file === undefined ? undefined : readSpec(context, file).spec);
  } catch (error) {
    if (error instanceof HpcserveError) return undefined;
    throw error;
  }
}

/** @param first the first word typed; where it is a command, the others are left out. Default: all commands. */
export async function buildProgram(context: CliContext, first?: string): Promise<Command> {
  const program = new Command('hpcserve')
    .description('Serve language models on Slurm clusters: one OpenAI-compatible URL that outlives the jobs.')
    .version(version, '-V, --version', 'print the version')
    .helpOption('-h, --help', 'print help, with examples')
    .option('--site <name>', 'site config to use: a name or a path')
    .option('--state-dir <folder>', 'state folder, instead of that of the site config')
    .addOption(
      new Option('--progress <kind>', 'how progress is shown').choices(['auto', 'tty', 'plain', 'json']),
    )
    .option('--json', 'data as one JSON object, or as JSON lines, on stdout')
    .configureHelp({ showGlobalOptions: true, sortSubcommands: false })
    .configureOutput({
      writeOut: (text) => void process.stdout.write(text),
      writeErr: (text) => void process.stderr.write(text),
      // Printed once, by main.ts, in the form of all errors.
      outputError: () => {},
    })
    .showSuggestionAfterError(true)
    .exitOverride()
    .hook('preAction', async (_program, command) => {
      const options = command.optsWithGlobals() as Record<string, unknown>;
      context.json = options.json === true;
      for (const [name, { key, flag }] of Object.entries(flagKeys))
        context.configuration.setFlag(key, flag, options[name]);
      await elsewhere(context, command);
    })
    .addHelpText(
      'after',
      `
Examples:
  $ hpcserve init                      write a site config from what Slurm says of itself
  $ hpcserve deploy model.yaml         submit, follow, and end with URL and key
  $ hpcserve status                    what runs, what waits and why
  $ hpcserve chat my-model "Hello"     ask it something
  $ hpcserve stop my-deployment        end its jobs

Exit codes: 0 success, 2 wrong usage, 3 configuration, 4 model, 5 no placement, 6 Slurm refused,
7 unreachable, 8 deployment failed, 9 no such thing, 10 conflict, 13 a check failed (docs/errors.md).`,
    );
  const alone = first !== undefined && first !== needsAll && Object.hasOwn(commands, first);
  for (const load of alone ? [commands[first]!] : Object.values(commands)) (await load())(program, context);
  return program;
}
