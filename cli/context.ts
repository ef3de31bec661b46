/** What every command is given: where to write, how, and what was configured. */
import type { Configuration } from './config/configuration.ts';

export interface CliContext {
  /** Data, one line on stdout. */
  out(line: string): void;
  /** Everything that is not data, one line on stderr. */
  note(line: string): void;
  /** Text without a line break on stdout, for answers that stream. */
  write(text: string): void;
  /** What was typed first, once it is understood: `keys` of `keys create`. */
  command?: string;
  /** It runs on another machine, and its output is handed on here. */
  remote?: true;
  /** `--json`: one object, or JSON lines, on stdout. */
  json: boolean;
  /** Whether escape sequences for colour are wanted on stderr and stdout; see NO_COLOR. */
  colour: boolean;
  readonly tty: { stdin: boolean; stdout: boolean; stderr: boolean };
  /** Columns of the terminal; 100 where there is none. */
  readonly columns: number;
  readonly environment: Readonly<Record<string, string | undefined>>;
  readonly working_folder: string;
  /** Settings from flags, environment and files; read when first asked for. */
  readonly configuration: Configuration;
  /** Aborts when the person interrupts. */
  readonly signal: AbortSignal;
  /** What Ctrl-C does, where it comes as a key, or where nobody reads on. */
  interrupt(): void;
  now_ms(): number;
  /**
   * Asks yes or no on the terminal. @throws E_CONFIRM where there is none.
   */
  confirm(question: string): Promise<boolean>;
}
