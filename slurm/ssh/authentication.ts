/** Ways to prove who one is, in the order in which they are tried: agent, key files, then what a person types. */
import { readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import type { AnyAuthMethod, AuthenticationType, AuthHandlerMiddleware, NextAuthHandler } from 'ssh2';
import { ssh2 } from './library.ts';

/** Asks a person at a terminal. */
export type AskPerson = (question: string, options: { hidden: boolean }) => Promise<string>;

export interface AuthenticationOptions {
  user: string;
  host: string;
  identity_files: readonly string[];
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

/** Remembers what was tried, for the error that says why nothing helped. */
export class Authentication {
  readonly tried: string[] = [];
  readonly #ways: Way[];

  constructor(options: AuthenticationOptions) {
    this.#ways = [...agentWay(options), ...keyWays(options), ...typedWays(options, () => this.#giveUp())];
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
      const offered = way.type === 'agent' ? 'publickey' : way.type;
      if (left !== null && !left.includes(offered)) continue;
      const method = await way.method();
      if (method === undefined) continue;
      this.tried.push(way.describe);
      return method;
    }
  }
}

function agentWay({ user, agent_socket }: AuthenticationOptions): Way[] {
  if (agent_socket === undefined || agent_socket === '') return [];
  const method: AnyAuthMethod = { type: 'agent', username: user, agent: agent_socket };
  return [{ type: 'agent', describe: 'keys of the ssh agent', method: async () => method }];
}

function keyWays({ user, identity_files, ask }: AuthenticationOptions): Way[] {
  const usual = usualKeys.map((name) => join(homedir(), '.ssh', name));
  return [...new Set([...identity_files, ...usual])].map((path) => ({
    type: 'publickey',
    describe: path,
    method: async () => {
      const key = readKey(path);
      if (key === undefined) return undefined;
      const passphrase = await passphraseOf(key, path, ask);
      if (passphrase === undefined) return undefined;
      return { type: 'publickey', username: user, key, ...(passphrase === '' ? {} : { passphrase }) };
    },
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
