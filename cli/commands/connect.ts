import { createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import { pipeline } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Command } from 'commander';
import { z } from 'zod';
import { understood } from '../../control/sites/site-output.ts';
import type { LoadedSite } from '../../control/state/site-files.ts';
import { makeFolders } from '../../host/make-folders.ts';
import { writeFileAtomically } from '../../host/whole-file.ts';
import type { SshConnection } from '../../slurm/ssh/connection.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { CliContext } from '../context.ts';
import { wayLines } from '../format/gateway-ways.ts';
import { parsePort } from '../parse-port.ts';
import { RemoteExit } from '../remote/remote-exit.ts';
import { connectTo, openRemoteSite, type RemoteSite } from '../remote/remote-site.ts';
import { UploadSet } from '../remote/upload-set.ts';
import { openSite } from '../site-session.ts';

/** Pauses between attempts to connect again, ms: doubled each time. */
const again_ms = { first: 500, most: 30_000 };

/** What `hpcserve endpoint --json` prints there, as far as it is used here. */
const endpointSchema = z.object({ url: z.string(), key: z.string(), ca: z.string().optional() });

export function registerConnect(command: Command, context: CliContext): void {
  command
    .option('--port <port>', 'port here (default: the gateway’s own, else any free one)', parsePort)
    .addHelpText(
      'after',
      `
For sites with slurm.ssh in their config. Stays until Ctrl-C; while the connection is down, clients wait for it.

Examples:
  $ hpcserve connect --site daint
  $ hpcserve connect --site daint --port 8000 --json     # {"url": …, "key": …}, then stays`,
    )
    .action((options: { port?: number }) => connect(context, options.port));
}

async function connect(context: CliContext, port_asked: number | undefined): Promise<void> {
  const loaded = openSite(context);
  if (loaded.site.slurm?.ssh === undefined)
    throw new HpcserveError('E_CONFIG_UNSUPPORTED', {
      what: `${loaded.site.name} is not reached over ssh`,
      because: 'its site config has no slurm.ssh',
      try: 'hpcserve endpoint prints the URL as it is',
    });
  const remote = await openRemoteSite(context, loaded.site);
  try {
    const endpoint = await endpointThere(context, loaded, remote);
    const there = new URL(endpoint.url);
    using tunnel = new Tunnel(remote.connection, () => connectTo(context, loaded.site), {
      host: there.hostname,
      port: Number(there.port),
      signal: context.signal,
      say: (line) => context.note(line),
    });
    const port = await tunnel.listen(port_asked, Number(there.port));
    // What it is shown for TLS names 127.0.0.1 too, where the site's own authority issued it.
    const url = `${there.protocol}//127.0.0.1:${port}/v1`;
    const ways = endpoint.ca === undefined ? {} : { ca_file: keepCa(context, loaded.site.name, endpoint.ca) };
    if (context.json) context.out(JSON.stringify({ url, key: endpoint.key, ...ways }));
    else {
      context.out(`URL     ${url}`);
      for (const line of wayLines(url, ways)) context.out(line);
      context.out(`key     ${endpoint.key}`);
      context.note('it stays until Ctrl-C');
    }
    await tunnel.run();
  } finally {
    remote.connection.close();
  }
}

/** What the gateway there is asked by. @throws RemoteExit where the command there fails, which has said why */
async function endpointThere(
  context: CliContext,
  loaded: LoadedSite,
  { connection, folder, program }: RemoteSite,
): Promise<z.infer<typeof endpointSchema>> {
  using uploads = new UploadSet(connection, folder, context);
  const site = await uploads.site(loaded.path);
  const asked = await connection.exec([...program, 'endpoint', '--json', '--site', site]);
  if (asked.code === 0) return understood(loaded.site.name, endpointSchema, asked.stdout);
  process.stderr.write(asked.stderr);
  throw new RemoteExit(asked.code);
}

/** Clients of this machine need a file of their own. @returns its path */
function keepCa(context: CliContext, site: string, ca: string): string {
  const folder = join(context.configuration.user_folder, 'ca');
  makeFolders(folder);
  const path = join(folder, `${site}.pem`);
  writeFileAtomically(path, ca);
  return path;
}

interface TunnelOptions {
  host: string;
  port: number;
  signal: AbortSignal;
  say: (line: string) => void;
}

/**
 * A listener here whose connections go through one ssh connection; that is made again when it breaks. `dispose` ends
 * all of them.
 */
class Tunnel implements Disposable {
  #connection: SshConnection | undefined;
  readonly #again: () => Promise<SshConnection>;
  readonly #options: TunnelOptions;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #wake: (() => void)[] = [];

  constructor(connection: SshConnection, again: () => Promise<SshConnection>, options: TunnelOptions) {
    this.#connection = connection;
    this.#again = again;
    this.#options = options;
    this.#server = createServer((socket) => void this.#carry(socket));
  }

  [Symbol.dispose](): void {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
    this.#connection?.close();
  }

  /** Only this machine may use it. @returns the port. @throws E_USAGE where the port that is asked for cannot be had */
  async listen(asked: number | undefined, usual: number): Promise<number> {
    const listen = (port: number): Promise<number> =>
      new Promise((resolve, reject) => {
        this.#server.once('error', reject);
        this.#server.listen(port, '127.0.0.1', () => {
          this.#server.off('error', reject);
          resolve((this.#server.address() as { port: number }).port);
        });
      });
    if (asked !== undefined)
      return listen(asked).catch((error: NodeJS.ErrnoException) => {
        throw portRefused(asked, error);
      });
    return listen(usual).catch(() => listen(0));
  }

  async run(): Promise<void> {
    const { signal, say } = this.#options;
    const ended = new Promise<void>((resolve) =>
      signal.addEventListener('abort', () => resolve(), { once: true }),
    );
    while (!signal.aborted) {
      await Promise.race([this.#connection!.closed, ended]);
      if (signal.aborted) break;
      this.#connection = undefined;
      say('the connection broke; connecting again');
      this.#connection = await this.#reconnect();
      if (this.#connection === undefined) break;
      say('connected again');
      for (const wake of this.#wake.splice(0)) wake();
    }
  }

  async #reconnect(): Promise<SshConnection | undefined> {
    const { signal, say } = this.#options;
    for (let pause_ms = again_ms.first; !signal.aborted; pause_ms = Math.min(again_ms.most, 2 * pause_ms)) {
      try {
        return await this.#again();
      } catch (error) {
        if (signal.aborted) return undefined;
        const known = HpcserveError.from(error);
        // Another key, or no way in any more: trying again would not help.
        if (known.code !== 'E_SSH_CONNECT') throw known;
        say(`${[known.message, ...known.because].join(': ')}; again in ${pause_ms / 1000} s`);
        await sleep(pause_ms, undefined, { signal }).catch(() => {});
      }
    }
    return undefined;
  }

  async #carry(socket: Socket): Promise<void> {
    this.#sockets.add(socket);
    socket.once('close', () => this.#sockets.delete(socket));
    socket.on('error', () => socket.destroy());
    for (;;) {
      if (this.#connection === undefined) await new Promise<void>((resolve) => this.#wake.push(resolve));
      if (socket.destroyed) return;
      const connection = this.#connection!;
      try {
        const stream = await connection.forward(this.#options.host, this.#options.port);
        pipeline(socket, stream, () => socket.destroy());
        pipeline(stream, socket, () => stream.destroy());
        return;
      } catch (error) {
        // Nothing was passed on yet: where the connection itself broke, the next one carries it.
        if (connection !== this.#connection || (await isClosed(connection))) continue;
        this.#options.say(HpcserveError.from(error).message);
        socket.destroy();
        return;
      }
    }
  }
}

function portRefused(port: number, error: NodeJS.ErrnoException): Error {
  const reasons: Record<string, string> = { EADDRINUSE: 'it is taken', EACCES: 'you may not listen there' };
  const because = reasons[error.code ?? ''];
  if (because === undefined) return error;
  return new HpcserveError('E_USAGE', {
    what: `port ${port} of this machine cannot be had`,
    because,
    try: 'another --port; without one it is any that is free',
    cause: error,
  });
}

/** Whether it is gone, given a moment to notice. */
async function isClosed(connection: SshConnection): Promise<boolean> {
  const moment = sleep(200).then(() => false);
  return Promise.race([connection.closed.then(() => true), moment]);
}
