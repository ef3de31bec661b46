import type { SshConnection } from '../../slurm/ssh/connection.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { enterRawMode, windowSize } from '../terminal.ts';
import { exitCodeOf } from './remote-exit.ts';

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
  const { channel, end } = await connection.openTerminal(argv, { term, ...windowSize() });
  // Pixels are not known.
  const resize = (): void => {
    const { cols, rows } = windowSize();
    channel.setWindow(rows, cols, 0, 0);
  };
  const leaveRawMode = enterRawMode();
  stdin.pipe(channel);
  channel.pipe(stdout, { end: false });
  stdout.on('resize', resize);
  let ended: Awaited<typeof end>;
  try {
    ended = await end;
  } finally {
    stdin.unpipe(channel);
    leaveRawMode();
    stdin.pause();
    stdout.off('resize', resize);
  }
  if (ended !== undefined) return exitCodeOf(ended);
  throw new HpcserveError('E_SSH_CONNECT', {
    what: `the connection to ${connection.target.host} broke`,
    because: 'it ended before the command did',
  });
}
