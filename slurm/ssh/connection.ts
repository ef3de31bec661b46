import { createHash } from 'node:crypto';
import { createReadStream, existsSync, readFileSync, statSync } from 'node:fs';
import type { Duplex, Readable, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type {
  Client,
  ClientChannel,
  ConnectConfig,
  ExecOptions as ExecRequest,
  PseudoTtyOptions,
  SFTPWrapper,
} from 'ssh2';
import { HpcserveError } from '../../spec/errors/error.ts';
import { shellQuote } from '../quote.ts';
import { type AskPerson, Authentication } from './authentication.ts';
import { acceptCertified } from './certified-key.ts';
import { type CommandEnd, interruptOnAbort } from './interruption.ts';
import { hostKeyFingerprint, hostKeyType, judgeHostKey, knownKeyTypes } from './known-hosts.ts';
import { ssh2 } from './library.ts';
import type { SshTarget } from './target.ts';

export interface ConnectOptions {
  /** Socket of an ssh agent. */
  agent_socket?: string;
  ask?: AskPerson;
  signal?: AbortSignal;
}

export interface ExecOptions {
  /** A stream is read for as long as the command runs. */
  input?: string | Readable;
  /** Called with what the command prints, as it comes. */
  onStdout?: (text: string) => void;
  /** Where what the command prints goes instead, byte for byte and no faster than it is taken: the result has none. */
  output?: { stdout: Writable; stderr: Writable };
  /** Aborted: the command gets SIGINT, as Ctrl-C gives it. */
  signal?: AbortSignal;
  /**
   * Time to end in order after that; then its channel is closed. Lower: a server that hands on no signals is left
   * sooner; higher: slow commands can say more of their end.
   */
  interrupted_ms?: number;
}

export interface ExecResult {
  /** A command ended by a signal has 128, and the signal's name beside it; SIGINT where it was left interrupted. */
  code: number;
  signal?: string;
  stdout: string;
  stderr: string;
}

export interface StartedCommand {
  channel: ClientChannel;
  /** Once its channel is closed: how it ended; undefined where the connection ended first. */
  end: Promise<CommandEnd | undefined>;
}

/** Time for one hop to be up, people's typing included, ms. */
const ready_ms = 120_000;
/**
 * A connection is dead after `count` of these without an answer. Lower: drops are seen sooner; higher: fewer packets.
 */
const keepalive = { interval_ms: 10_000, count: 3 };

/** Commands say in this time what they leave behind, ms; see `ExecOptions`. */
const interrupted_ms_default = 10_000;

/** One connection to a login node: commands, files and ports over it. Host keys are checked, always. */
export class SshConnection {
  readonly target: SshTarget;
  /** Resolves when the connection is gone, however it went. */
  readonly closed: Promise<void>;
  readonly #hops: Client[];
  #sftp: Promise<SFTPWrapper> | undefined;

  /** @throws E_SSH_CONNECT, E_SSH_HOST_KEY, E_SSH_AUTHENTICATION naming the hop */
  static async open(target: SshTarget, options: ConnectOptions = {}): Promise<SshConnection> {
    const hops: Client[] = [];
    try {
      let through: Duplex | undefined;
      for (const hop of [...target.jumps, target]) {
        const client = await connect(hop, target, through, options);
        hops.push(client);
        const at = hops.length;
        const next = [...target.jumps, target][at];
        if (next) through = await forwardOut(client, next.host, next.port);
      }
    } catch (error) {
      for (const hop of hops) hop.end();
      throw error;
    }
    return new SshConnection(target, hops);
  }

  private constructor(target: SshTarget, hops: Client[]) {
    this.target = target;
    this.#hops = hops;
    this.closed = new Promise((resolve) => {
      for (const hop of hops) {
        hop.once('close', () => resolve());
        // What broke it comes with 'close'; commands that run end with their own errors.
        hop.on('error', () => {});
      }
    });
  }

  get #client(): Client {
    return this.#hops.at(-1)!;
  }

  /**
   * Runs a command there. Its words reach the remote shell quoted, each as one word.
   * @throws E_SSH_CONNECT where the connection ends before the command does
   */
  async exec(argv: readonly string[], options: ExecOptions = {}): Promise<ExecResult> {
    const { channel, end } = await this.#start(argv);
    const { output, onStdout, input, signal, interrupted_ms = interrupted_ms_default } = options;
    const out = { stdout: '', stderr: '' };
    if (output === undefined) {
      channel.setEncoding('utf8').on('data', (text: string) => {
        out.stdout += text;
        onStdout?.(text);
      });
      channel.stderr.setEncoding('utf8').on('data', (text: string) => {
        out.stderr += text;
      });
    } else {
      channel.pipe(output.stdout, { end: false });
      channel.stderr.pipe(output.stderr, { end: false });
    }
    using interruption = interruptOnAbort(channel, signal, interrupted_ms);
    if (typeof input !== 'object') channel.end(input ?? '');
    const over = Promise.race([end, interruption.left]);
    const ended = await (typeof input === 'object' ? fed(channel, input, over) : over);
    if (ended === undefined) throw lost(this.target.host, 'it ended before the command did');
    return { ...ended, ...out };
  }

  /**
   * Runs a command there in a terminal of its own. What it writes is read from the channel; what is written to the
   * channel is typed; `setWindow` of it changes the size.
   */
  openTerminal(argv: readonly string[], terminal: PseudoTtyOptions): Promise<StartedCommand> {
    return this.#start(argv, { pty: terminal });
  }

  #start(argv: readonly string[], options: ExecRequest = {}): Promise<StartedCommand> {
    const opened = new Promise<StartedCommand>((resolve, reject) => {
      this.#client.exec(argv.map(shellQuote).join(' '), options, (error, channel) => {
        if (error) return reject(lost(this.target.host, error.message));
        // Listened to from here on: a short command's whole life may come in one packet, with this call in the middle.
        let ended: CommandEnd | undefined;
        channel.on('exit', (code: number | null, signal?: string) => {
          ended = code === null ? { code: 128, signal: signal || undefined } : { code };
        });
        const end = new Promise<CommandEnd | undefined>((done) => channel.once('close', () => done(ended)));
        resolve({ channel, end });
      });
    });
    return this.#orLost(opened);
  }

  /**
   * Brings a file there unless the same bytes are there already; compared by SHA-256 over both.
   * @returns whether bytes travelled. @throws E_SSH_FILE
   */
  async upload(
    local: string,
    remote: string,
    onProgress: (bytes: number, total: number) => void = () => {},
  ): Promise<boolean> {
    const total = statSync(local).size;
    const digest = await sha256(local);
    if ((await this.#digestThere(remote)) === digest) return false;
    const sftp = await this.#openSftp();
    const part = `${remote}.part`;
    let bytes = 0;
    const source = createReadStream(local);
    source.on('data', (chunk) => {
      bytes += chunk.length;
      onProgress(bytes, total);
    });
    try {
      await pipeline(source, sftp.createWriteStream(part, { mode: 0o600 }));
      const arrived = await this.#digestThere(part);
      if (arrived !== digest)
        throw new Error(`its checksum there is ${arrived ?? 'not to be had'}, here ${digest}`);
      await new Promise<void>((resolve, reject) =>
        sftp.ext_openssh_rename(part, remote, (error) => (error ? reject(error) : resolve())),
      );
    } catch (error) {
      throw new HpcserveError('E_SSH_FILE', {
        what: `${local} could not be brought to ${this.target.host}:${remote}`,
        because: (error as Error).message,
        cause: error,
      });
    }
    return true;
  }

  /** A byte stream to a port that listens there (or that can be reached from there). @throws E_SSH_CONNECT */
  forward(host: string, port: number): Promise<Duplex> {
    return this.#orLost(forwardOut(this.#client, host, port));
  }

  /** ssh2 forgets what it was asked for when the connection closes: nobody would ever hear of it. */
  #orLost<T>(asked: Promise<T>): Promise<T> {
    const gone = this.closed.then((): never => {
      throw lost(this.target.host, 'it was closed');
    });
    return Promise.race([asked, gone]);
  }

  close(): void {
    for (const hop of [...this.#hops].reverse()) hop.end();
  }

  async #digestThere(path: string): Promise<string | undefined> {
    const { code, stdout } = await this.exec(['sha256sum', '--', path]);
    return code === 0 ? stdout.slice(0, 64) : undefined;
  }

  #openSftp(): Promise<SFTPWrapper> {
    this.#sftp ??= new Promise((resolve, reject) => {
      this.#client.sftp((error, sftp) => (error ? reject(error) : resolve(sftp)));
    });
    return this.#sftp;
  }
}

/**
 * Hands a stream to a command until that ends; what the command has not taken then stays unread.
 * @returns what `end` does. @throws what reading fails with
 */
async function fed<End>(channel: ClientChannel, input: Readable, end: Promise<End>): Promise<End> {
  const broken = new Promise<never>((_, reject) => input.once('error', reject));
  input.pipe(channel);
  try {
    return await Promise.race([end, broken]);
  } finally {
    input.unpipe(channel).pause();
  }
}

async function sha256(path: string): Promise<string> {
  const hash = createHash('sha256');
  await pipeline(createReadStream(path), hash);
  return hash.digest('hex');
}

function forwardOut(client: Client, host: string, port: number): Promise<Duplex> {
  return new Promise((resolve, reject) => {
    try {
      client.forwardOut('127.0.0.1', 0, host, port, (error, stream) => {
        if (error === undefined) resolve(stream);
        else reject(lost(`${host}:${port}`, error.message));
      });
    } catch (error) {
      // Thrown where the connection is known to be closed.
      reject(lost(`${host}:${port}`, (error as Error).message));
    }
  });
}

function lost(host: string, because: string): HpcserveError {
  return new HpcserveError('E_SSH_CONNECT', { what: `the connection to ${host} broke`, because });
}

async function connect(
  hop: { host: string; port: number; user: string },
  target: SshTarget,
  through: Duplex | undefined,
  { agent_socket, ask, signal }: ConnectOptions,
): Promise<Client> {
  const file = target.known_hosts_file;
  const known = existsSync(file) ? readFileSync(file, 'utf8') : '';
  const authentication = new Authentication({
    user: hop.user,
    host: hop.host,
    identity_files: target.identity_files,
    certificate_files: target.certificate_files,
    agent_socket,
    ask,
  });
  let refused: HpcserveError | undefined;
  const client = new (ssh2().Client)();
  const config: ConnectConfig = {
    host: hop.host,
    port: hop.port,
    username: hop.user,
    sock: through as never,
    readyTimeout: ready_ms,
    keepaliveInterval: keepalive.interval_ms,
    keepaliveCountMax: keepalive.count,
    hostVerifier: (key: Buffer): boolean => {
      refused = refusal(hop, file, known, key);
      return refused === undefined;
    },
    authHandler: authentication.handler,
    ...preferKnown(knownKeyTypes(known, hop.host, hop.port)),
  };
  const abort = (): void => void client.destroy();
  signal?.addEventListener('abort', abort, { once: true });
  try {
    await new Promise<void>((resolve, reject) => {
      client
        .once('ready', resolve)
        .once('error', reject)
        .once('close', () => reject(new Error('it was closed')));
      client.connect(config);
      acceptCertified(client);
    });
  } catch (error) {
    client.end();
    signal?.throwIfAborted();
    throw refused ?? connectError(hop, error as Error & { level?: string }, authentication.tried);
  } finally {
    signal?.removeEventListener('abort', abort);
  }
  client.removeAllListeners('close');
  return client;
}

/** Kinds of host keys, strongest first; SHA-1 signatures are not among them. */
const hostKeyKinds = [
  'ssh-ed25519',
  'ecdsa-sha2-nistp256',
  'ecdsa-sha2-nistp384',
  'ecdsa-sha2-nistp521',
  'rsa-sha2-512',
  'rsa-sha2-256',
] as const;

/** Asks first for the kinds of keys that are known: a host has several, and one that is not known would be refused. */
function preferKnown(types: readonly string[]): Pick<ConnectConfig, 'algorithms'> {
  const isKnown = (kind: string): boolean => types.includes(kind.startsWith('rsa-sha2') ? 'ssh-rsa' : kind);
  const serverHostKey = [...hostKeyKinds].sort((a, b) => Number(isKnown(b)) - Number(isKnown(a)));
  return { algorithms: { serverHostKey } };
}

function refusal(
  { host, port }: { host: string; port: number },
  file: string,
  known: string,
  key: Buffer,
): HpcserveError | undefined {
  const verdict = judgeHostKey(known, host, port, key);
  if (verdict.state === 'known') return undefined;
  const name = port === 22 ? host : `[${host}]:${port}`;
  const seen = `it showed a ${hostKeyType(key)} key with fingerprint ${hostKeyFingerprint(key)}`;
  const details = { fingerprint: hostKeyFingerprint(key), state: verdict.state };
  if (verdict.state === 'unknown')
    return new HpcserveError('E_SSH_HOST_KEY', {
      what: `the key of ${name} is not known`,
      because: [seen, `${file} has no line for it`],
      try: [
        `compare the fingerprint with what your site publishes, then: ssh ${port === 22 ? '' : `-p ${port} `}${host}`,
      ],
      details,
    });
  return new HpcserveError('E_SSH_HOST_KEY', {
    what:
      verdict.state === 'revoked'
        ? `the key of ${name} was revoked`
        : `the key of ${name} is another than before: somebody may be in between`,
    because: [seen, `${file}, line ${verdict.state === 'revoked' ? verdict.line : verdict.lines.join(', ')}`],
    try: [`ask your site whether its keys were changed; then: ssh-keygen -R '${name}'`],
    details,
  });
}

function connectError(
  { host, port, user }: { host: string; port: number; user: string },
  error: Error & { level?: string },
  tried: readonly string[],
): HpcserveError {
  if (error.level === 'client-authentication')
    return new HpcserveError('E_SSH_AUTHENTICATION', {
      what: `${host} does not let ${user} in`,
      because:
        tried.length > 0
          ? `it took none of these: ${tried.join(', ')}`
          : 'there is no key to show: no agent, no key file',
      cause: error,
    });
  return new HpcserveError('E_SSH_CONNECT', {
    what: `${host}, port ${port}, cannot be reached by ssh`,
    because: error.message,
    cause: error,
  });
}
