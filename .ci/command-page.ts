/** docs/commands.md: every command's own help text, and the configuration keys. */
import type { Command } from 'commander';
import { configKeys } from '../cli/config/config-schema.ts';
import { Configuration } from '../cli/config/configuration.ts';
import type { CliContext } from '../cli/context.ts';
import { buildProgram } from '../cli/program.ts';

const page_columns = 100;

/** All commands that do something, by their full names, with the help they print. */
export async function commandHelp(): Promise<{ name: string; help: string }[]> {
  const { program, load } = buildProgram(offlineContext());
  for (const command of program.commands) await load(command);
  return leaves(program, '').map(({ name, command }) => ({
    name,
    help: helpOf(command),
  }));
}

export async function commandPage(): Promise<string[]> {
  return [
    '# Commands',
    '',
    'What each command prints with `--help`. Data goes to stdout, everything else to stderr; `--json` makes data',
    'one object or JSON lines. Exit codes are in [errors.md](errors.md).',
    '',
    ...(await commandHelp()).flatMap(({ name, help }) => [
      `## ${name}`,
      '',
      '```',
      help.trimEnd(),
      '```',
      '',
    ]),
    '## Configuration',
    '',
    'Strongest first: flags, environment, `./hpcserve.yaml` of the folder a command is typed in,',
    '`$XDG_CONFIG_HOME/hpcserve/config.yaml`, `/etc/hpcserve/config.yaml`. `hpcserve config explain KEY` says',
    'where a value came from.',
    '',
    '| key | environment | flag | default | meaning |',
    '|---|---|---|---|---|',
    ...Object.entries(configKeys).map(
      ([key, value]) =>
        `| \`${key}\` | \`${value.variable}\` | ${value.flag ? `\`${value.flag}\`` : ''} | ${value.default ?? ''} | ${value.description} |`,
    ),
  ];
}

function leaves(command: Command, prefix: string): { name: string; command: Command }[] {
  const name = `${prefix}${command.name()}`;
  if (command.commands.length === 0) return [{ name, command }];
  // Commands that only other programs call (completion) are hidden from help, and from here.
  const visible = command.createHelp().visibleCommands(command);
  return visible.filter((child) => child.name() !== 'help').flatMap((child) => leaves(child, `${name} `));
}

function helpOf(command: Command): string {
  let text = '';
  command.configureOutput({
    writeOut: (part) => {
      text += part;
    },
    getOutHelpWidth: () => page_columns,
    getOutHasColors: () => false,
  });
  command.outputHelp();
  return text;
}

/** Registering commands asks the context for nothing; running one here is a mistake. */
function offlineContext(): CliContext {
  const refuse = (): never => {
    throw new Error('the command page runs no command');
  };
  return {
    out: refuse,
    note: refuse,
    write: refuse,
    json: false,
    colour: false,
    tty: { stdin: false, stdout: false, stderr: false },
    columns: page_columns,
    environment: {},
    working_folder: '/',
    configuration: new Configuration({ environment: {}, working_folder: '/', etc_folder: '/nonexistent' }),
    signal: new AbortController().signal,
    interrupt: refuse,
    now_ms: refuse,
    confirm: refuse,
  };
}
