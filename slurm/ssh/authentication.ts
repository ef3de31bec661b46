/**
 * Ways to prove who one is, in the order in which they are tried: agent, key files, then what a person types. A key
 * that a site's authority vouches for is shown with its certificate first, and then alone.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type {
  AnyAuthMethod,
  AuthenticationType,
  AuthHandlerMiddleware,
  NextAuthHandler,
  ParsedKey,
} from 'ssh2';
import { homeFolder } from '../../host/own-user.ts';
import { agentIdentities, signByAgent } from './agent-keys.ts';
import {
  describeCertificate,
  parseCertificate,
  readCertificate,
  type UserCertificate,
} from './certificate.ts';
import { certifiedKey, type Sign, signByKey } from './certified-key.ts';
import { ssh2 } from './library.ts';

/** Asks a person at a terminal. */
export type AskPerson = (question: string, options: { hidden: boolean }) => Promise<string>;

export interface AuthenticationOptions {
  user: string;
  host: string;
  identity_files: readonly string[];
  /** Beside those whose name is that of a key file with `-cert.pub` behind it. */
  certificate_files: readonly string[];
  /** Socket of an ssh agent, as SSH_AUTH_SOCK names it. */
  agent_socket?: string;
  /** Absent where there is no terminal: then nothing is asked. */
  ask?: AskPerson;
}

const usualKeys = ['id_ed25519', 'id_ecdsa', 'id_rsa'];
/** Wrong passwords and passphrases that may be typed. */
const attempts_max = 3;

interface Way {
  type: AuthenticationType;
  describe: string;
  method: () => Promise<AnyAuthMethod | undefined>;
}
/** Ways that are known once it is their turn: there may be something to ask first. */
type LaterWays = { offered: AuthenticationType; ways: () => Promise<Way[]> };

/** Remembers what was tried, for the error that says why nothing helped. */
export class Authentication {
  readonly tried: string[] = [];
  readonly #ways: (Way | LaterWays)[];

  constructor(options: AuthenticationOptions) {
    this.#ways = [...agentWays(options), ...keyWays(options), ...typedWays(options, () => this.#giveUp())];
  }

  /** For ssh2: gives the next way that the server would take. */
  readonly handler: AuthHandlerMiddleware = (
    methodsLeft: AuthenticationType[] | null,
    _partial: boolean | null,
    next: NextAuthHandler,
  ): void => {
    void this.#next(methodsLeft).then(
      (method) => next(method ?? (false as never)),
      // A person who interrupts a question gives up on the whole connection.
      () => next(false as never),
    );
  };

  #giveUp(): void {
    this.#ways.length = 0;
  }

  async #next(left: AuthenticationType[] | null): Promise<AnyAuthMethod | undefined> {
    for (;;) {
      const way = this.#ways.shift();
      if (way === undefined) return undefined;
      if ('ways' in way) {
        if (left === null || left.includes(way.offered)) this.#ways.unshift(...(await way.ways()));
        continue;
      }
      const offered = way.type === 'agent' ? 'publickey' : way.type;
      if (left !== null && !left.includes(offered)) continue;
      const method = await way.method();
      if (method === undefined) continue;
      this.tried.push(way.describe);
      return method;
    }
  }
}

function agentWays({ user, agent_socket, certificate_files }: AuthenticationOptions): (Way | LaterWays)[] {
  if (agent_socket === undefined || agent_socket === '') return [];
  const method: AnyAuthMethod = { type: 'agent', username: user, agent: agent_socket };
  const certificates = async (): Promise<Way[]> => {
    const identities = await agentIdentities(agent_socket);
    const ofFiles = certificate_files.flatMap((path) => {
      const certificate = readCertificate(path);
      const key = certificate && identities.find((each) => each.equals(certificate.public_key));
      return certificate && key ? [{ certificate, identity: key }] : [];
    });
    const own = identities.flatMap((identity) => {
      const certificate = parseCertificate(identity);
      return certificate ? [{ certificate, identity }] : [];
    });
    return [...own, ...ofFiles].map(({ certificate, identity }) =>
      certifiedWay(user, 'a key of the ssh agent', certificate, (data) =>
        signByAgent(agent_socket, identity, data),
      ),
    );
  };
  return [
    { offered: 'publickey', ways: certificates },
    { type: 'agent', describe: 'keys of the ssh agent', method: async () => method },
  ];
}

function certifiedWay(user: string, key: string, certificate: UserCertificate, sign: Sign): Way {
  return {
    type: 'publickey',
    describe: `${key} ${describeCertificate(certificate, Date.now())}`,
    method: async () => ({
      type: 'publickey',
      username: user,
      key: certifiedKey(certificate, sign),
    }),
  };
}

function keyWays({ user, identity_files, certificate_files, ask }: AuthenticationOptions): LaterWays[] {
  const usual = usualKeys.map((name) => join(homeFolder(), '.ssh', name));
  const waysOf = async (path: string): Promise<Way[]> => {
    const key = readKey(path);
    if (key === undefined) return [];
    const passphrase = await passphraseOf(key, path, ask);
    if (passphrase === undefined) return [];
    const parsed = ssh2().utils.parseKey(key, passphrase) as ParsedKey;
    const certificates = [`${path}-cert.pub`, ...certificate_files]
      .map(readCertificate)
      .filter((each) => each?.public_key.equals(parsed.getPublicSSH()));
    return [
      ...certificates.map((certificate) => certifiedWay(user, path, certificate!, signByKey(parsed))),
      {
        type: 'publickey',
        describe: path,
        method: async () => ({ type: 'publickey', username: user, key: parsed }),
      },
    ];
  };
  return [...new Set([...identity_files, ...usual])].map((path) => ({
    offered: 'publickey',
    ways: () => waysOf(path),
  }));
}

function readKey(path: string): Buffer | undefined {
  try {
    return readFileSync(path);
  } catch (error) {
    // Absent or of somebody else: as `ssh` does, the next one is tried; `tried` does not name it.
    if (['ENOENT', 'EACCES'].includes((error as NodeJS.ErrnoException).code ?? '')) return undefined;
    throw error;
  }
}

/** Empty: none is needed. Undefined: it cannot be read, or nobody knows its passphrase. */
async function passphraseOf(
  key: Buffer,
  path: string,
  ask: AskPerson | undefined,
): Promise<string | undefined> {
  if (!(ssh2().utils.parseKey(key) instanceof Error)) return '';
  if (!/encrypted|passphrase/i.test(String(ssh2().utils.parseKey(key)))) return undefined;
  if (ask === undefined) return undefined;
  for (let attempt = 0; attempt < attempts_max; attempt++) {
    const passphrase = await ask(`Passphrase of ${path}: `, { hidden: true });
    if (!(ssh2().utils.parseKey(key, passphrase) instanceof Error)) return passphrase;
  }
  return undefined;
}

/** @param giveUp told where a question is interrupted while the server waits for its answer */
function typedWays({ user, host, ask }: AuthenticationOptions, giveUp: () => void): Way[] {
  if (ask === undefined) return [];
  const interactive: Way = {
    type: 'keyboard-interactive',
    describe: 'answers at the terminal',
    method: async () => ({
      type: 'keyboard-interactive',
      username: user,
      prompt: (_name, instructions, _language, prompts, finish) => {
        const answers = async (): Promise<string[]> => {
          const typed: string[] = [];
          for (const [index, { prompt, echo }] of prompts.entries()) {
            const before = index === 0 && instructions ? `${instructions.trimEnd()}\n` : '';
            typed.push(await ask(`${before}(${user}@${host}) ${prompt}`, { hidden: !echo }));
          }
          return typed;
        };
        void answers().then(finish, () => {
          giveUp();
          finish([]);
        });
      },
    }),
  };
  const password: Way = {
    type: 'password',
    describe: 'password',
    method: async () => ({
      type: 'password',
      username: user,
      password: await ask(`${user}@${host}'s password: `, { hidden: true }),
    }),
  };
  return [
    ...Array.from({ length: attempts_max }, () => interactive),
    ...Array.from({ length: attempts_max }, () => password),
  ];
}
