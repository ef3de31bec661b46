import { constants } from 'node:os';
import type { SshConnection } from '../../slurm/ssh/connection.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { enterRawMode, windowSize } from '../terminal.ts';

/**
 * A program on the other machine, at the terminal of this process.
 * @returns its exit code; 128 plus the signal where one ended it
 * @throws E_SSH_CONNECT where the connection ends before the program does
 */
export async function useRemoteTerminal(
  connection: SshConnection,
  argv: readonly string[],
  term = 'xterm-256color',
): Promise<number> {
  const { stdin, stdout } = process;
  const channel = await connection.openTerminal(argv, { term, ...windowSize() });
  // Pixels are not known.
  const resize = (): void => {
    const { cols, rows } = windowSize();
    channel.setWindow(rows, cols, 0, 0);
  };
  let code: number | undefined;
  channel.on('exit', (status: number | null, signal?: string) => {
    code = status ?? 128 + (constants.signals[`SIG${signal ?? ''}` as NodeJS.Signals] ?? 0);
  });
  const closed = new Promise<void>((resolve) => channel.once('close', resolve));
  const leaveRawMode = enterRawMode();
  stdin.pipe(channel);
  channel.pipe(stdout, { end: false });
  stdout.on('resize', resize);
  try {
    await closed;
  } finally {
    stdin.unpipe(channel);
    leaveRawMode();
    stdin.pause();
    stdout.off('resize', resize);
  }
  if (code !== undefined) return code;
  throw new HpcserveError('E_SSH_CONNECT', {
    what: `the connection to ${connection.target.host} broke`,
    because: 'it ended before the command did',
  });
}
