/** Programs that a person uses at the terminal of this process. */
import { spawn as spawnChild, spawnSync } from 'node:child_process';
import { constants } from 'node:os';
import type { IPty } from 'node-pty';
import { commandMissing } from '../slurm/command-runner.ts';

export interface TerminalProgram {
  argv: readonly string[];
  cwd: string;
  environment: Record<string, string | undefined>;
}

/**
 * Runs a program in a pseudoterminal of its own behind this terminal: every key goes to it, Ctrl-C among them, and it
 * learns of every new size of the window.
 * @returns its exit code; 128 plus the signal where one ended it
 */
export async function runInTerminal({ argv, cwd, environment }: TerminalProgram): Promise<number> {
  // Loaded here: other commands need no addon for terminals.
  const { spawn } = await import('node-pty');
  const [program = '', ...args] = argv;
  const { stdin, stdout } = process;
  const pty: IPty = spawn(program, args, {
    name: environment.TERM ?? 'xterm-256color',
    ...windowSize(),
    cwd,
    env: environment,
    encoding: null,
  });
  const resize = (): void => {
    const { cols, rows } = windowSize();
    pty.resize(cols, rows);
  };
  const hangUp = (): void => pty.kill('SIGHUP');
  const type = (keys: Buffer): void => pty.write(keys);
  const ended = new Promise<number>((resolve) => {
    pty.onExit(({ exitCode, signal }) => resolve(signal ? 128 + signal : exitCode));
  });
  pty.onData((output) => void stdout.write(output));
  stdout.on('resize', resize);
  process.once('SIGHUP', hangUp);
  const leaveRawMode = enterRawMode();
  stdin.on('data', type);
  stdin.resume();
  try {
    return await ended;
  } finally {
    leaveRawMode();
    stdin.off('data', type);
    stdin.pause();
    stdout.off('resize', resize);
    process.off('SIGHUP', hangUp);
  }
}

/**
 * Runs a program with the input and output of this one, where there is no terminal.
 * @returns its exit code; 128 plus the signal where one ended it
 */
export function runAttached({ argv, cwd, environment }: TerminalProgram): Promise<number> {
  const [program = '', ...args] = argv;
  const child = spawnChild(program, args, { cwd, env: environment, stdio: 'inherit' });
  return new Promise((resolve, reject) => {
    child.once('error', (error: NodeJS.ErrnoException) =>
      reject(error.code === 'ENOENT' ? commandMissing(program, error) : error),
    );
    child.once('exit', (code, signal) => resolve(code ?? 128 + constants.signals[signal!]));
  });
}

/**
 * Hands every key on as it is, and every byte of output: Node's own raw mode still puts a carriage return before line
 * feeds, which the program's terminal has done already.
 * @returns what puts the terminal back
 */
export function enterRawMode(): () => void {
  process.stdin.setRawMode(true);
  spawnSync('stty', ['-opost'], { stdio: ['inherit', 'ignore', 'ignore'] });
  return () => void process.stdin.setRawMode(false);
}

/** Of this terminal; what programs take for granted where it does not say. */
export function windowSize(): { cols: number; rows: number } {
  const { columns, rows } = process.stdout;
  return { cols: columns || 80, rows: rows || 24 };
}
