import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync } from 'node:fs';
import { compiledFile } from '../../host/programs.ts';
import { gatewayNodeOptions } from '../../spec/gateway-node-options.ts';
import {
  type HeldName,
  type HolderMessage,
  heldNames,
  type Inherited,
  inheriting,
  type SocketHandle,
} from './messages.ts';
import { type AfterEnd, afterEnd } from './restart.ts';

const gatewayProgram = compiledFile('gateway/main.js');

/** The gateway, as its parent or, where the parent was killed, as the child that took its place. */
interface Gateway {
  kill(signal: NodeJS.Signals): void;
  began_ms: number;
}

export interface HolderOptions {
  /** Of the gateway. */
  config_file: string;
  say: (level: 'info' | 'warn', words: string) => void;
  /** The holder has nothing to hold any more. */
  end: (code: number) => void;
  /** Where whoever started the holder is gone with it, a gateway that loses its holder ends as well. */
  is_attached: boolean;
}

/**
 * Keeps the listening sockets of a gateway open whatever becomes of the gateway, so that nobody else can listen there,
 * and starts it again. What clients send meanwhile waits in the kernel. It reads nothing of them and knows no secret.
 */
export class Holder {
  readonly #options: HolderOptions;
  readonly #held = new Map<HeldName, SocketHandle>();
  #gateway: Gateway | undefined;
  #pause: NodeJS.Timeout | undefined;
  #has_listened = false;
  #is_told = false;
  #quick_ends = 0;

  constructor(options: HolderOptions) {
    this.#options = options;
  }

  /** Starts the gateway; the sockets that are held are its own from the beginning. */
  start(): void {
    const { config_file, is_attached } = this.#options;
    const inherits = inheriting(this.#held);
    const child = spawn(
      process.execPath,
      [
        ...gatewayNodeOptions,
        gatewayProgram,
        ...['--config', config_file],
        ...(is_attached ? ['--attached'] : []),
        ...inherits.arguments,
      ],
      { stdio: inherits.stdio },
    );
    this.#follow({ kill: (signal) => child.kill(signal), began_ms: performance.now() }, child);
    child.once('error', (error) => {
      this.#options.say('warn', `the gateway cannot be started: ${error.message}`);
      // One that was never there has no other end.
      if (child.pid === undefined) this.#ended(1);
    });
    child.once('exit', (code, signal) => {
      if (!this.#is_told)
        this.#options.say('warn', `the gateway ended ${signal ? `by ${signal}` : `with exit code ${code}`}`);
      this.#ended(code ?? 1);
    });
  }

  /**
   * Takes the place of a holder that was killed, as a child of the gateway `pid` that has its sockets already: one that
   * came over the channel would be lost with a gateway that is killed before this process listens to it.
   */
  adopt(pid: number, inherited: Inherited): void {
    this.#has_listened = true;
    for (const name of heldNames) {
      const fd = inherited[name];
      if (fd !== undefined) this.#hold(name, { fd, close: () => closeSync(fd) });
    }
    this.#follow({ kill: (signal) => process.kill(pid, signal), began_ms: 0 }, process);
    const left = (): void => {
      if (!this.#is_told) this.#options.say('warn', 'the gateway ended');
      this.#ended(1);
    };
    // A channel that ended while this program was loaded has no event any more.
    if (process.connected) process.once('disconnect', left);
    else left();
  }

  /** The gateway is no longer meant to run: the address is free from now on, and answers may end. */
  stop(signal: NodeJS.Signals): void {
    this.#is_told = true;
    clearTimeout(this.#pause);
    for (const handle of this.#held.values()) handle.close();
    this.#held.clear();
    if (this.#gateway) this.#gateway.kill(signal);
    else this.#options.end(0);
  }

  #follow(gateway: Gateway, channel: Pick<ChildProcess, 'on'> | NodeJS.Process): void {
    this.#gateway = gateway;
    (channel as Pick<ChildProcess, 'on'>).on('message', (message, handle) => {
      const told = message as HolderMessage;
      if ('listens' in told) this.#has_listened = true;
      else if (handle) this.#hold(told.hold, handle as unknown as SocketHandle);
    });
  }

  #hold(name: HeldName, handle: SocketHandle): void {
    this.#held.get(name)?.close();
    this.#held.delete(name);
    if (this.#is_told) handle.close();
    else this.#held.set(name, handle);
  }

  #ended(code: number): void {
    const gateway = this.#gateway;
    if (!gateway) return;
    this.#gateway = undefined;
    const next: AfterEnd = afterEnd({
      code,
      lived_ms: performance.now() - gateway.began_ms,
      has_listened: this.#has_listened,
      is_told: this.#is_told,
      quick_ends: this.#quick_ends,
    });
    if (next.do === 'end') {
      this.#options.end(next.code);
      return;
    }
    this.#quick_ends = next.quick_ends;
    this.#options.say(
      'info',
      `its address is held; it is started again${next.pause_ms > 0 ? ` in ${next.pause_ms / 1000} s` : ''}`,
    );
    this.#pause = setTimeout(() => this.start(), next.pause_ms);
  }
}
