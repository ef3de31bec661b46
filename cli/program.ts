/** The command tree: global options here, one file a command in `commands/`. */
import { Command, Option } from 'commander';
import type { LoadedSite } from '../control/site-files.ts';
import { version } from '../control/version.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { registerBackfill } from './commands/backfill.ts';
import { registerChat } from './commands/chat.ts';
import { registerCompletion } from './commands/completion.ts';
import { registerConfig } from './commands/config.ts';
import { registerConnect } from './commands/connect.ts';
import { registerDeploy } from './commands/deploy.ts';
import { registerDoctor } from './commands/doctor.ts';
import { registerEndpoint } from './commands/endpoint.ts';
import { registerGateway } from './commands/gateway.ts';
import { registerInit } from './commands/init.ts';
import { registerKeep } from './commands/keep.ts';
import { registerKeys } from './commands/keys.ts';
import { registerLogs } from './commands/logs.ts';
import { registerModelCommands } from './commands/model.ts';
import { registerModels } from './commands/models.ts';
import { registerNodes } from './commands/nodes.ts';
import { registerPlan } from './commands/plan.ts';
import { registerRender } from './commands/render.ts';
import { registerRun } from './commands/run.ts';
import { registerShell } from './commands/shell.ts';
import { registerSimulate } from './commands/simulate.ts';
import { registerSites } from './commands/sites.ts';
import { registerStatus } from './commands/status.ts';
import { registerStop } from './commands/stop.ts';
import { registerTop } from './commands/top.ts';
import { registerUsage } from './commands/usage.ts';
import type { ConfigKey } from './config/config-schema.ts';
import type { CliContext } from './context.ts';
import { RanElsewhere } from './remote/ran-elsewhere.ts';
import { remoteCommands, runThere } from './remote/run-there.ts';
import { openSite, readSpec } from './site-session.ts';

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

/** A site over ssh: the command runs on its login node. @throws RanElsewhere with its exit code */
async function elsewhere(context: CliContext, command: Command): Promise<void> {
  const top = topCommand(command);
  // With a URL the gateway is asked as it is; nothing of the site is needed.
  if (!remoteCommands.has(top.name()) || context.configuration.get('url') !== undefined) return;
  const loaded = siteOfCommand(context, top);
  if (loaded?.site.slurm?.ssh === undefined) return;
  throw new RanElsewhere(await runThere(context, loaded, command, process.argv.slice(2)));
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

export function buildProgram(context: CliContext): Command {
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
  for (const register of [
    registerInit,
    registerDeploy,
    registerPlan,
    registerSimulate,
    registerRender,
    registerStatus,
    registerLogs,
    registerShell,
    registerRun,
    registerStop,
    registerKeep,
    registerBackfill,
    registerChat,
    registerModels,
    registerModelCommands,
    registerEndpoint,
    registerGateway,
    registerConnect,
    registerKeys,
    registerUsage,
    registerTop,
    registerNodes,
    registerSites,
    registerDoctor,
    registerConfig,
    registerCompletion,
  ])
    register(program, context);
  return program;
}
