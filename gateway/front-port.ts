import { chmodSync, rmSync, statSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import { dirname } from 'node:path';
import { makeFolders } from '../host/make-folders.ts';
import { moveIntoPlaceSync } from '../host/move.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import type { Accepting } from './client-servers.ts';
import type { HolderLink } from './holder/holder-link.ts';
import type { Inherited } from './holder/messages.ts';
import { type Listening, listen, startListening, type WantedAddress } from './listen.ts';
import type { GatewayLog } from './log.ts';

export interface FrontPortOptions {
  log: GatewayLog;
  /** What becomes of the connections that come in. */
  accepting: Accepting;
  /** Keeps the listening sockets when this process is killed; undefined where nobody does. */
  holder: HolderLink | undefined;
  /** Descriptors of listening sockets that the gateway before this one had. */
  inherited: Inherited;
}

/** Longest path of a unix socket, bytes: 107, less what stands behind it while it is made. */
const socket_bytes_max = 100;

/** Where clients come in: a TCP port, with TLS or without, and a unix socket beside it. */
export class FrontPort {
  readonly #options: FrontPortOptions;
  #socket_path: string | undefined;

  constructor(options: FrontPortOptions) {
    this.#options = options;
  }

  /** Listens on the port. Throws E_GATEWAY_PORT. */
  async listen(wanted: WantedAddress): Promise<Listening> {
    const { holder, inherited, log } = this.#options;
    const { port } = this.#options.accepting.servers;
    if (inherited.port !== undefined) {
      await startListening(port, { fd: inherited.port }, 'the port of the gateway before');
      holder?.holds('port', port);
      return { port: (port.address() as AddressInfo).port };
    }
    const found = await listen(port, wanted, log);
    holder?.hold('port', port);
    return found;
  }

  /** Listens on a unix socket too, in a folder of the user alone. Throws E_GATEWAY_PORT. */
  async listenOnSocket(path: string): Promise<void> {
    const { holder, inherited } = this.#options;
    const { socket } = this.#options.accepting.servers;
    if (inherited.socket !== undefined && isSocket(path)) {
      await startListening(socket, { fd: inherited.socket }, path);
      this.#socket_path = path;
      holder?.holds('socket', socket);
      return;
    }
    requirePrivate(path);
    // Under another name first: what is there of a gateway that was killed is replaced at once.
    const fresh = `${path}.new`;
    rmSync(fresh, { force: true });
    await startListening(socket, { path: fresh }, path);
    chmodSync(fresh, 0o600);
    moveIntoPlaceSync(fresh, path);
    this.#socket_path = path;
    holder?.hold('socket', socket);
  }

  /** Stops accepting and waits until every answer has ended, or cuts them off after `drain_ms`. */
  async drain(drain_ms: number): Promise<void> {
    const closed = this.#stopAccepting();
    const { accepting } = this.#options;
    const idle = setInterval(() => accepting.closeIdle(), 50);
    const limit = setTimeout(() => accepting.closeAll(), drain_ms);
    await closed;
    clearInterval(idle);
    clearTimeout(limit);
  }

  /** Cuts everything off. */
  async stop(): Promise<void> {
    const closed = this.#stopAccepting();
    this.#options.accepting.closeAll();
    await closed;
  }

  #stopAccepting(): Promise<void> {
    if (this.#socket_path !== undefined) rmSync(this.#socket_path, { force: true });
    this.#socket_path = undefined;
    return this.#options.accepting.stopAccepting();
  }
}

function isSocket(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isSocket() === true;
}

/** @throws HpcserveError E_GATEWAY_PORT where others could listen there, or put a socket of theirs in its place */
function requirePrivate(path: string): void {
  const refuse = (because: string): never => {
    throw new HpcserveError('E_GATEWAY_PORT', {
      what: `cannot listen on ${path}`,
      because,
      try: 'choose another gateway.socket in the site config',
    });
  };
  if (Buffer.byteLength(path) > socket_bytes_max)
    refuse(`the path has ${Buffer.byteLength(path)} bytes, and at most ${socket_bytes_max} are possible`);
  const folder = dirname(path);
  makeFolders(folder);
  const { uid, mode } = statSync(folder);
  if (uid !== process.getuid!()) refuse(`the folder ${folder} belongs to user id ${uid}`);
  if ((mode & 0o077) !== 0)
    refuse(
      `the mode of ${folder} is 0${(mode & 0o777).toString(8)}, and others must not enter it: chmod 700`,
    );
  const there = statSync(path, { throwIfNoEntry: false });
  if (there && !there.isSocket()) refuse('there is a file, and it is no socket');
}
