/** Ways to log in that ask a person: one-time codes and passwords, as servers of sites put their questions. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { AuthContext, AuthenticationType, KeyboardAuthContext, Server as Ssh2Server } from 'ssh2';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { SshConnection } from '../../../slurm/ssh/connection.ts';
import type { SshTarget } from '../../../slurm/ssh/target.ts';

const { Server } = createRequire(import.meta.url)('ssh2') as { Server: typeof Ssh2Server };

let folder: string;
let server: Ssh2Server;
let target: SshTarget;
/** What the server makes of an attempt; set by each test. */
let judge: (attempt: AuthContext) => void;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-login-'));
  const host_key = join(folder, 'host');
  execFileSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', host_key]);
  server = new Server({ hostKeys: [readFileSync(host_key)] }, (client) => {
    client.on('authentication', (attempt) => judge(attempt));
    // Clients that are refused go.
    client.on('error', () => undefined);
    client.on('session', (accept) => {
      accept().on('exec', (accepted) => {
        const channel = accepted();
        channel.write('in\n');
        channel.exit(0);
        channel.end();
      });
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  const known_hosts_file = join(folder, 'known_hosts');
  const key = readFileSync(`${host_key}.pub`, 'utf8').split(' ').slice(0, 2).join(' ');
  writeFileSync(known_hosts_file, `[127.0.0.1]:${port} ${key}\n`);
  target = {
    host: '127.0.0.1',
    port,
    user: 'ada',
    identity_files: [],
    certificate_files: [],
    jumps: [],
    known_hosts_file,
  };
});
afterAll(async () => {
  await new Promise<void>((resolve) => server.close(() => resolve()));
  rmSync(folder, { recursive: true, force: true });
});

interface Asked {
  question: string;
  hidden: boolean;
}
function person(answers: string[]): {
  ask: (q: string, o: { hidden: boolean }) => Promise<string>;
  asked: Asked[];
} {
  const asked: Asked[] = [];
  return {
    asked,
    ask: async (question, { hidden }) => {
      asked.push({ question, hidden });
      return answers.shift() ?? '';
    },
  };
}

describe('a person at the terminal', () => {
  it('answers each question of a server, hidden where it asks for that, in one round or several', async () => {
    judge = (attempt) => {
      if (attempt.method !== 'keyboard-interactive') return attempt.reject(['keyboard-interactive']);
      const questions: Parameters<KeyboardAuthContext['prompt']>[0] = [
        { prompt: 'User name at the centre: ', echo: true },
        { prompt: 'One-time code: ', echo: false },
      ];
      attempt.prompt(questions, 'Login', 'Read the rules.', (first) => {
        if (first.join() !== 'ada.l,123456') return attempt.reject(['keyboard-interactive']);
        attempt.prompt([{ prompt: 'Again: ', echo: false }], (second) =>
          second.join() === '654321' ? attempt.accept() : attempt.reject(['keyboard-interactive']),
        );
      });
    };
    const { ask, asked } = person(['ada.l', '123456', '654321']);
    const connection = await SshConnection.open(target, { ask });
    expect((await connection.exec(['true'])).stdout).toBe('in\n');
    connection.close();
    expect(asked).toEqual([
      { question: 'Read the rules.\n(ada@127.0.0.1) User name at the centre: ', hidden: false },
      { question: '(ada@127.0.0.1) One-time code: ', hidden: true },
      { question: '(ada@127.0.0.1) Again: ', hidden: true },
    ]);
  });

  it('may mistype: the question comes again, three times', async () => {
    judge = (attempt) => {
      if (attempt.method !== 'keyboard-interactive') return attempt.reject(['keyboard-interactive']);
      attempt.prompt([{ prompt: 'Code: ', echo: false }], ([code]) =>
        code === 'right' ? attempt.accept() : attempt.reject(['keyboard-interactive']),
      );
    };
    const { ask, asked } = person(['wrong', 'wrong', 'right']);
    (await SshConnection.open(target, { ask })).close();
    expect(asked).toHaveLength(3);
    const again = person(['wrong', 'wrong', 'wrong', 'right']);
    await expect(SshConnection.open(target, { ask: again.ask })).rejects.toMatchObject({
      code: 'E_SSH_AUTHENTICATION',
    });
    expect(again.asked).toHaveLength(3);
  });

  it('types a password where the server takes nothing else, and nothing is asked without a terminal', async () => {
    judge = (attempt) => {
      if (attempt.method !== 'password') return attempt.reject(['password']);
      if (attempt.password === 'secret-of-ada') attempt.accept();
      else attempt.reject(['password']);
    };
    const { ask, asked } = person(['secret-of-ada']);
    (await SshConnection.open(target, { ask })).close();
    expect(asked).toEqual([{ question: "ada@127.0.0.1's password: ", hidden: true }]);
    const error = await SshConnection.open(target).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: 'E_SSH_AUTHENTICATION' });
  });

  it.each<[AuthenticationType, (attempt: AuthContext) => void]>([
    ['password', (attempt) => attempt.accept()],
    [
      'keyboard-interactive',
      (attempt) =>
        (attempt as KeyboardAuthContext).prompt([{ prompt: 'Code: ', echo: false }], ([code]) =>
          code === undefined ? attempt.reject(['keyboard-interactive', 'password']) : attempt.accept(),
        ),
    ],
  ])('gives up by interrupting a question (%s)', async (method, take) => {
    judge = (attempt) => (attempt.method === method ? take(attempt) : attempt.reject([method]));
    let asked = 0;
    // Who is asked again answers, and would be let in.
    const ask = async (): Promise<string> => {
      asked++;
      if (asked === 1) throw new Error('interrupted');
      return 'anything';
    };
    await expect(SshConnection.open(target, { ask })).rejects.toMatchObject({ code: 'E_SSH_AUTHENTICATION' });
    expect(asked).toBe(1);
  });
});
