import type { Command } from 'commander';
import { DeploymentStore } from '../../control/state/deployment-store.ts';
import { listSites } from '../../control/state/site-list.ts';
import type { CommandTree } from '../command-tree.ts';
import type { CliContext } from '../context.ts';
import { sitePlaces } from '../site-places.ts';
import { openSite } from '../site-session.ts';

/** Commands whose argument is the name of a deployment. */
const takesDeployment = ['status', 'stop', 'forget', 'logs'];

export function registerCompletion(command: Command, context: CliContext): void {
  command.registeredArguments[0]!.choices(['bash', 'zsh', 'fish']);
  command
    .addHelpText(
      'after',
      `
Examples:
  $ hpcserve completion bash >> ~/.bashrc
  $ hpcserve completion zsh > "\${fpath[1]}/_hpcserve"
  $ hpcserve completion fish > ~/.config/fish/completions/hpcserve.fish`,
    )
    .action((shell: 'bash' | 'zsh' | 'fish') => context.write(scripts[shell]));
}

/** What the scripts ask at each press of the key. */
export function registerComplete(command: Command, context: CliContext, tree: CommandTree): void {
  command
    .allowUnknownOption()
    .helpOption(false)
    .action(async (words: string[]) => {
      for (const word of await complete(tree, context, words)) context.out(word);
    });
}

/**
 * Words that may stand where the last one is being typed.
 * @param words what is typed after `hpcserve`, the last one perhaps empty.
 */
export async function complete(
  { program, load }: CommandTree,
  context: CliContext,
  words: readonly string[],
): Promise<string[]> {
  const typed = words.at(-1) ?? '';
  const before = words.slice(0, -1);
  let command = program;
  for (const word of before) {
    const next = command.commands.find((each) => each.name() === word);
    if (!next) continue;
    await load(next);
    command = next;
  }
  const candidates = candidatesFor(program, command, context, before.at(-1), typed);
  return candidates.filter((word) => word.startsWith(typed)).sort();
}

function candidatesFor(
  program: Command,
  command: Command,
  context: CliContext,
  previous: string | undefined,
  typed: string,
): string[] {
  const options = [...command.options, ...program.options];
  const option = options.find((each) => each.long === previous || each.short === previous);
  if (option?.argChoices) return option.argChoices;
  if (previous === '--site') return listSites(sitePlaces(context)).map((site) => site.name);
  if (typed.startsWith('-')) return [...new Set(options.flatMap((each) => each.long ?? []).concat('--help'))];
  const subcommands = command.commands.map((each) => each.name()).filter((name) => name !== '__complete');
  if (subcommands.length > 0) return subcommands;
  if (takesDeployment.includes(command.name())) return new DeploymentStore(openSite(context).layout).list();
  return command.registeredArguments.flatMap((argument) => argument.argChoices ?? []);
}

/** Where nothing is offered the shells complete file names. */
const scripts = {
  bash: `_hpcserve() {
  local words
  words=$(hpcserve __complete -- "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null) || words=''
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "\${COMP_WORDS[COMP_CWORD]}")
}
complete -o default -F _hpcserve hpcserve
`,
  zsh: `#compdef hpcserve
_hpcserve() {
  local -a candidates
  candidates=("\${(@f)$(hpcserve __complete -- "\${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "\${candidates[1]}" ]]; then compadd -a candidates; else _files; fi
}
compdef _hpcserve hpcserve
`,
  fish: `function __hpcserve_complete
  set -l words (commandline -opc) (commandline -ct)
  hpcserve __complete -- $words[2..-1] 2>/dev/null
end
complete -c hpcserve -a '(__hpcserve_complete)'
`,
} as const;
