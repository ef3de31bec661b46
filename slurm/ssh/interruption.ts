/** Ctrl-C for a command on another machine that has no terminal there. */
import type { ClientChannel } from 'ssh2';

/** What ssh2 keeps to itself of a channel. */
interface ChannelParts {
  _client: { _protocol: { signal(id: number, name: string): void } };
  outgoing: { id: number; state: 'open' | 'eof' | 'closing' | 'closed' };
}

export interface CommandEnd {
  code: number;
  signal?: string;
}

interface Interruption extends Disposable {
  /** Resolves where the command was interrupted and is waited for no longer: how it counts as ended. */
  readonly left: Promise<CommandEnd>;
}

/**
 * Sends SIGINT when the signal aborts. OpenSSH hands none on before 7.9, nor for root, and a command may take none:
 * after `patience_ms` the channel is closed, and the command finds nobody who reads what it says. Nor is the answer to
 * that waited for, since OpenSSH gives it when the command has ended.
 */
export function interruptOnAbort(
  channel: ClientChannel,
  signal: AbortSignal | undefined,
  patience_ms: number,
): Interruption {
  let interrupt = (): void => {};
  let patience: NodeJS.Timeout | undefined;
  const left = new Promise<CommandEnd>((resolve) => {
    interrupt = () => {
      sendInterrupt(channel);
      patience = setTimeout(() => {
        channel.close();
        resolve({ code: 128, signal: 'SIGINT' });
      }, patience_ms);
    };
  });
  if (signal?.aborted) interrupt();
  else signal?.addEventListener('abort', interrupt, { once: true });
  return {
    left,
    [Symbol.dispose]: () => {
      clearTimeout(patience);
      signal?.removeEventListener('abort', interrupt);
    },
  };
}

/**
 * `signal` of ssh2 sends nothing once input has ended, which it has for most commands: the end of input is the end of
 * data, and requests go on behind it (RFC 4254 §5.3).
 */
function sendInterrupt(channel: ClientChannel): void {
  const { _client, outgoing } = channel as unknown as ChannelParts;
  if (outgoing.state === 'open' || outgoing.state === 'eof') _client._protocol.signal(outgoing.id, 'INT');
}
