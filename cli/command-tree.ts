import type { Command } from 'commander';
import type { CliContext } from './context.ts';

/** Gives a command its options, its subcommands and its action. */
export type Register = (command: Command, context: CliContext, tree: CommandTree) => void;

/** The command line as it is known before anything is typed. */
export interface CommandTree {
  program: Command;
  /** What a command of the list is besides its outline; of others, and of one that is loaded, nothing is to be done. */
  load(command: Command): Promise<void>;
}
