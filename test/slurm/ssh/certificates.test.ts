/** Keys that an authority vouches for, on a real OpenSSH server that knows nothing of them but the authority. */
import { execFileSync, spawn } from 'node:child_process';
import { copyFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { readCertificate } from '../../../slurm/ssh/certificate.ts';
import { type ConnectOptions, SshConnection } from '../../../slurm/ssh/connection.ts';
import { type SshTarget, targetOf } from '../../../slurm/ssh/target.ts';
import { type SshServer, startSshServer } from './server.ts';

let server: SshServer;
beforeAll(async () => {
  server = await startSshServer();
}, 120_000);
afterAll(() => server?.stop());

const path = (name: string): string => join(server.folder, name);
const target = (more: Partial<SshTarget> = {}): SshTarget => ({
  host: '127.0.0.1',
  port: server.port,
  user: server.user,
  identity_files: [],
  certificate_files: [],
  jumps: [],
  known_hosts_file: server.known_hosts_file,
  ...more,
});

/** A new key with a certificate beside it. @returns path of the private key */
function certified(name: string, type: string[], options: { validity?: string; passphrase?: string } = {}) {
  const { validity = '-1m:+1h', passphrase = '' } = options;
  execFileSync('ssh-keygen', ['-q', '-t', ...type, '-N', passphrase, '-C', 'test', '-f', path(name)]);
  const sign = ['-q', '-s', server.authority_file, '-I', name, '-n', server.user, '-V', validity];
  execFileSync('ssh-keygen', [...sign, path(`${name}.pub`)]);
  return path(name);
}

async function comesIn(to: Partial<SshTarget>, options: ConnectOptions = {}): Promise<void> {
  const connection = await SshConnection.open(target(to), options);
  expect((await connection.exec(['echo', 'in'])).stdout).toBe('in\n');
  connection.close();
}

describe('a key with a certificate', () => {
  it.each([
    ['ed25519', ['ed25519']],
    ['rsa', ['rsa', '-b', '2048']],
    ['ecdsa', ['ecdsa', '-b', '256']],
    ['ecdsa-521', ['ecdsa', '-b', '521']],
  ])('opens what the key alone does not: %s', async (name, type) => {
    const key = certified(name, type);
    await comesIn({ identity_files: [key] });
    rmSync(`${key}-cert.pub`);
    await expect(SshConnection.open(target({ identity_files: [key] }))).rejects.toMatchObject({
      code: 'E_SSH_AUTHENTICATION',
    });
  });

  it('has its passphrase asked for once', async () => {
    const key = certified('locked', ['ed25519'], { passphrase: 'open sesame' });
    const questions: string[] = [];
    const ask = async (question: string): Promise<string> => {
      questions.push(question);
      return 'open sesame';
    };
    await comesIn({ identity_files: [key] }, { ask });
    expect(questions).toEqual([`Passphrase of ${key}: `]);
  });

  it('that has ended is named with its end, and the next key is tried', async () => {
    const key = certified('ended', ['ed25519'], { validity: '20260101000000Z:20260102000000Z' });
    await expect(SshConnection.open(target({ identity_files: [key] }))).rejects.toMatchObject({
      because: [
        expect.stringContaining(`${key} with its certificate, which ended 2026-01-02T00:00:00.000Z, ${key}`),
      ],
    });
    await comesIn({ identity_files: [key, server.identity_file] });
  });

  it('of another key, of a host, or broken is none', async () => {
    const key = certified('own', ['ed25519']);
    copyFileSync(`${certified('other', ['ed25519'])}-cert.pub`, `${key}-cert.pub`);
    await expect(SshConnection.open(target({ identity_files: [key] }))).rejects.toMatchObject({
      because: [expect.not.stringContaining('certificate')],
    });
    const sign = ['-q', '-s', server.authority_file, '-I', 'h', '-h', '-n', 'host'];
    execFileSync('ssh-keygen', [...sign, path('own.pub')]);
    expect(readCertificate(`${key}-cert.pub`)).toBeUndefined();
    expect(readCertificate(path('own.pub'))).toBeUndefined();
    expect(readCertificate(path('nowhere'))).toBeUndefined();
  });

  it('is found where ~/.ssh/config says', async () => {
    const key = certified('configured', ['ed25519']);
    const elsewhere = path('certificate-of-today.pub');
    copyFileSync(`${key}-cert.pub`, elsewhere);
    rmSync(`${key}-cert.pub`);
    const config_file = path('ssh_config');
    writeFileSync(config_file, `Host *\n  IdentityFile ${key}\n  CertificateFile ${elsewhere}\n`);
    const { port, user, known_hosts_file } = server;
    const settings = { host: '127.0.0.1', port, user, proxy_jump: [], known_hosts_file, config_file };
    await comesIn(await targetOf(settings));
  });
});

describe('a key of the agent with a certificate', () => {
  let stop: (() => void) | undefined;
  afterEach(() => stop?.());

  let agents = 0;

  /** An agent with nothing in it. One that ends removes its socket in its own time: the next has another. */
  async function agent(): Promise<string> {
    const socket = path(`agent-${agents++}.sock`);
    const running = spawn('ssh-agent', ['-D', '-a', socket], { stdio: ['ignore', 'pipe', 'ignore'] });
    stop = () => running.kill();
    await new Promise((resolve) => running.stdout.once('data', resolve));
    return socket;
  }
  const add = (socket: string, ...words: string[]): unknown =>
    execFileSync('ssh-add', ['-q', ...words], { env: { ...process.env, SSH_AUTH_SOCK: socket } });

  it.each([
    ['agent-ed25519', ['ed25519']],
    ['agent-rsa', ['rsa', '-b', '2048']],
  ])('opens: %s', async (name, type) => {
    const agent_socket = await agent();
    const key = certified(name, type);
    add(agent_socket, key);
    for (const file of [key, `${key}-cert.pub`]) rmSync(file);
    await comesIn({}, { agent_socket });
  });

  it('opens with a certificate that lies in a file', async () => {
    const agent_socket = await agent();
    const key = certified('agent-file', ['ed25519']);
    const certificate = path('agent-certificate.pub');
    copyFileSync(`${key}-cert.pub`, certificate);
    rmSync(`${key}-cert.pub`);
    add(agent_socket, key);
    rmSync(key);
    await comesIn({ certificate_files: [certificate] }, { agent_socket });
  });

  it('that nobody confirms is no end: the next key is tried', async () => {
    const agent_socket = await agent();
    const key = certified('unconfirmed', ['ed25519']);
    add(agent_socket, '-c', key);
    for (const file of [key, `${key}-cert.pub`]) rmSync(file);
    await comesIn({ identity_files: [server.identity_file] }, { agent_socket });
  });
});
