import { spawn } from 'node:child_process';
import type { Server } from 'node:net';
import { compiledFile } from '../../host/programs.ts';
import { holderNodeOptions } from '../../spec/gateway-node-options.ts';
import type { GatewayLog } from '../log.ts';
import { type HeldName, type HolderMessage, handleOf, inheriting } from './messages.ts';

const holderProgram = compiledFile('gateway/holder/main.js');
/** Until another holder is tried where one ended at once, ms. Lower: the address is held again sooner. */
const again_ms = 2000;

/** One side of Node's channel: of this process to its parent, or to a child. */
interface Channel {
  readonly connected: boolean;
  send?: typeof process.send;
}

export interface HolderLinkOptions {
  config_file: string;
  log: GatewayLog;
  /** The holder is gone and is not to be replaced: who started both is gone too, or starts both again. */
  onLeft?: () => void;
  /** Another process holds the sockets from now on. */
  onHeldBy: (pid: number) => void;
}

/**
 * The gateway's side of its holder. A holder that is killed is replaced by a child of this process, so that the address
 * is held whichever of the two goes first.
 */
export class HolderLink {
  readonly #options: HolderLinkOptions;
  readonly #servers = new Map<HeldName, Server>();
  #channel: Channel | undefined = process;
  #timer: NodeJS.Timeout | undefined;
  #has_listened = false;
  #is_closed = false;

  /** @returns undefined where this gateway was started without a holder */
  static ofParent(options: HolderLinkOptions): HolderLink | undefined {
    return process.connected === undefined ? undefined : new HolderLink(options);
  }

  private constructor(options: HolderLinkOptions) {
    this.#options = options;
    if (process.connected) process.once('disconnect', () => this.#lost());
    // A holder that ended while this program was loaded has no event any more.
    else setImmediate(() => this.#lost());
    process.channel?.unref();
  }

  /** Gives a listening socket to the holder, which keeps it open when this process has ended. */
  hold(name: HeldName, server: Server): void {
    this.#servers.set(name, server);
    this.#send({ hold: name }, server);
  }

  /** A socket that the holder has already. */
  holds(name: HeldName, server: Server): void {
    this.#servers.set(name, server);
  }

  /** From now on the gateway is started again when it ends by itself. */
  listens(): void {
    this.#has_listened = true;
    if (this.#channel) this.#send({ listens: true });
    else this.#lost();
  }

  /** The gateway ends in order. */
  close(): void {
    this.#is_closed = true;
    clearTimeout(this.#timer);
  }

  #send(message: HolderMessage, server?: Server): void {
    const channel = this.#channel;
    if (!channel?.connected) return;
    // That the other side is gone is told by the end of the channel.
    channel.send?.(message, server && handleOf(server), undefined, () => undefined);
  }

  #lost(): void {
    this.#channel = undefined;
    if (this.#is_closed) return;
    const { log, onLeft } = this.#options;
    if (onLeft) {
      log.warn({}, 'the process that holds the port is gone');
      onLeft();
    } else if (this.#has_listened) {
      // Before, there is nothing to hold, and nobody to start again.
      log.warn({}, 'the process that held the port is gone; another one takes its place');
      this.#replace();
    }
  }

  #replace(): void {
    const { config_file, log, onHeldBy } = this.#options;
    const inherits = inheriting(
      new Map(
        [...this.#servers].flatMap(([name, server]) => (server.listening ? [[name, handleOf(server)]] : [])),
      ),
    );
    const child = spawn(
      process.execPath,
      [
        ...[...holderNodeOptions, holderProgram, '--config', config_file, '--adopt', String(process.pid)],
        ...inherits.arguments,
      ],
      { detached: true, stdio: inherits.stdio },
    );
    const gone = (words: string): void => {
      if (this.#channel !== undefined && this.#channel !== child) return;
      this.#channel = undefined;
      if (this.#is_closed) return;
      log.warn({ because: words }, 'nobody holds the port; it is tried again');
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#replace(), again_ms);
    };
    child.once('error', (error) => gone(error.message));
    child.once('exit', (code, signal) => gone(signal ?? `exit code ${code}`));
    child.unref();
    if (child.pid === undefined) return;
    this.#channel = child;
    child.channel?.unref();
    onHeldBy(child.pid);
  }
}
