import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { connect, createServer as createRelay } from 'node:net';
import { join } from 'node:path';
import { PassThrough, Readable } from 'node:stream';
import { buffer, text } from 'node:stream/consumers';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { SshConnection } from '../../../slurm/ssh/connection.ts';
import { type SshTarget, targetOf } from '../../../slurm/ssh/target.ts';
import { ensureClusterUser } from '../../cluster/user.ts';
import { type SshServer, startSshServer } from './server.ts';

let server: SshServer;
let jump: SshServer;
beforeAll(async () => {
  server = await startSshServer();
  jump = await startSshServer();
}, 120_000);
afterAll(async () => {
  await server?.stop();
  await jump?.stop();
});

const target = (more: Partial<SshTarget> = {}): SshTarget => ({
  host: '127.0.0.1',
  port: server.port,
  user: server.user,
  identity_files: [server.identity_file],
  certificate_files: [],
  jumps: [],
  known_hosts_file: server.known_hosts_file,
  ...more,
});

describe('commands over ssh', () => {
  let connection: SshConnection;
  beforeAll(async () => {
    connection = await SshConnection.open(target());
  });
  afterAll(() => connection?.close());

  it('arrive word by word, whatever the words are', async () => {
    const words = ['a b', "it's", '$HOME', '`id`', '"', '\\', '*', ';', 'ü€', '-n', 'line\nbreak', '!', ''];
    const { code, stdout } = await connection.exec(['printf', '%s|', ...words]);
    expect(code).toBe(0);
    expect(stdout).toBe(words.map((word) => `${word}|`).join(''));
  });

  it('give their exit code, both outputs, and take input', async () => {
    const script = 'read line; echo "got $line"; echo bad >&2; exit 7';
    const result = await connection.exec(['sh', '-c', script], { input: 'hello\n' });
    expect(result).toMatchObject({ code: 7, stdout: 'got hello\n', stderr: 'bad\n' });
    expect((await connection.exec(['sh', '-c', 'kill -TERM $$'])).signal).toBe('SIGTERM');
  });

  it('stream what they print while they run', async () => {
    const seen: string[] = [];
    const running = connection.exec(['sh', '-c', 'echo first; read line; echo second'], {
      onStdout: (text) => seen.push(text),
    });
    await running;
    expect(seen.join('')).toBe('first\nsecond\n');
  });

  it('hand on what they print byte for byte, however it is cut', async () => {
    const stdout = new PassThrough();
    const stderr = new PassThrough();
    const seen = buffer(stdout);
    // The first bytes are read before the rest is written.
    const rest = new PassThrough();
    stdout.once('data', () => rest.end('\n'));
    const script = String.raw`printf '\377\0a\303'; read line; printf '\274'; printf '\376' >&2`;
    const result = await connection.exec(['sh', '-c', script], { input: rest, output: { stdout, stderr } });
    expect(result).toEqual({ code: 0, stdout: '', stderr: '' });
    stdout.end();
    expect([...(await seen)]).toEqual([0xff, 0, 0x61, 0xc3, 0xbc]);
    expect([...stderr.read()]).toEqual([0xfe]);
  });

  it('read a stream to its end, or as far as they want it', async () => {
    const all = await connection.exec(['cat'], { input: Readable.from(['what ', 'comes']) });
    expect(all).toMatchObject({ code: 0, stdout: 'what comes' });
    const endless = new PassThrough();
    endless.write('first\nsecond\n');
    const some = await connection.exec(['head', '-n', '1'], { input: endless });
    expect(some).toMatchObject({ code: 0, stdout: 'first\n' });
    expect(endless.isPaused()).toBe(true);
    const broken = new Readable({ read: () => broken.destroy(new Error('it cannot be read')) });
    await expect(connection.exec(['cat'], { input: broken })).rejects.toThrow('it cannot be read');
  });

  it('bring files whole, and not twice', async () => {
    const local = join(server.folder, 'local.bin');
    writeFileSync(local, Buffer.from(Array.from({ length: 300_000 }, (_, index) => index % 251)));
    mkdirSync(join(server.folder, 'there'));
    const remote = join(server.folder, 'there', "a name with 'quotes'.bin");
    let told = 0;
    expect(await connection.upload(local, remote, (bytes) => (told = bytes))).toBe(true);
    expect(told).toBe(300_000);
    expect(readFileSync(remote).equals(readFileSync(local))).toBe(true);
    expect(statSync(remote).mode & 0o777).toBe(0o600);
    expect(existsSync(`${remote}.part`)).toBe(false);
    expect(await connection.upload(local, remote)).toBe(false);
    await expect(connection.upload(local, '/nowhere/at/all')).rejects.toMatchObject({ code: 'E_SSH_FILE' });
  });

  it('reach ports that listen there', async () => {
    const http = createServer((_, answer) => answer.end('from there'));
    await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve));
    const stream = await connection.forward('127.0.0.1', (http.address() as { port: number }).port);
    stream.write('GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n');
    expect(await text(stream)).toMatch(/from there$/);
    await expect(connection.forward('127.0.0.1', 1)).rejects.toMatchObject({ code: 'E_SSH_CONNECT' });
    await new Promise((resolve) => http.close(resolve));
  });
});

describe('commands that are interrupted', () => {
  it('get SIGINT, also where their input is over', async () => {
    // OpenSSH hands no signals on to root.
    const own = await startSshServer({}, ensureClusterUser().name);
    const { port, user, known_hosts_file } = own;
    const connection = await SshConnection.open(
      target({ port, user, known_hosts_file, identity_files: [own.identity_file] }),
    );
    try {
      const interruption = new AbortController();
      const script = 'trap "echo interrupted; exit 9" INT; cat; echo ready; while :; do sleep 0.1; done';
      const running = connection.exec(['sh', '-c', script], {
        signal: interruption.signal,
        onStdout: () => interruption.abort(),
      });
      expect(await running).toMatchObject({ code: 9, stdout: 'ready\ninterrupted\n' });
      // It was aborted before this one began.
      const late = await connection.exec(['sleep', '60'], { signal: interruption.signal });
      expect(late).toMatchObject({ code: 128, signal: 'SIGINT' });
    } finally {
      connection.close();
      await own.stop();
    }
  });

  it('and go on are left, and find nobody who reads what they say', async () => {
    const connection = await SshConnection.open(target());
    const interruption = new AbortController();
    const gone = join(server.folder, 'nobody-reads');
    // As behind an OpenSSH that hands no signals on.
    const script = `trap '' INT PIPE; while echo more; do sleep 0.1; done 2>/dev/null; touch ${gone}; sleep 60`;
    const left = await connection.exec(['sh', '-c', script], {
      signal: interruption.signal,
      interrupted_ms: 1,
      onStdout: () => interruption.abort(),
    });
    expect(left).toMatchObject({ code: 128, signal: 'SIGINT' });
    await expect.poll(() => existsSync(gone)).toBe(true);
    connection.close();
  });
});

describe('a connection', () => {
  it('goes through other hosts', async () => {
    const known = join(server.folder, 'known_both');
    writeFileSync(
      known,
      readFileSync(server.known_hosts_file, 'utf8') + readFileSync(jump.known_hosts_file, 'utf8'),
    );
    // The jump host lets the same key in.
    writeFileSync(join(jump.folder, 'authorized_keys'), readFileSync(`${server.identity_file}.pub`));
    const through = await targetOf({
      host: '127.0.0.1',
      port: server.port,
      user: server.user,
      identity_file: server.identity_file,
      proxy_jump: [`${jump.user}@127.0.0.1:${jump.port}`],
      known_hosts_file: known,
    });
    const connection = await SshConnection.open(through);
    const { stdout } = await connection.exec(['sh', '-c', 'echo $SSH_CONNECTION']);
    expect(stdout.trim().split(' ').at(-1)).toBe(String(server.port));
    connection.close();
    await expect(
      SshConnection.open({ ...through, known_hosts_file: server.known_hosts_file }),
    ).rejects.toMatchObject({
      code: 'E_SSH_HOST_KEY',
    });
    await expect(targetOf({ host: 'h', proxy_jump: ['a:b:c'] })).rejects.toThrow(/names no host/);
  });

  it('finds host, port, user, keys, jump hosts and known hosts as ~/.ssh/config has them', async () => {
    const known = join(server.folder, 'known_config');
    writeFileSync(
      known,
      readFileSync(server.known_hosts_file, 'utf8') + readFileSync(jump.known_hosts_file, 'utf8'),
    );
    writeFileSync(join(jump.folder, 'authorized_keys'), readFileSync(`${server.identity_file}.pub`));
    const config_file = join(server.folder, 'ssh_config');
    const common = `  HostName 127.0.0.1\n  UserKnownHostsFile ${known}\n  IdentityFile "${server.identity_file}"\n`;
    writeFileSync(`${config_file}.more`, `Host gate\n${common}  User ${jump.user}\n  Port ${jump.port}\n`);
    writeFileSync(
      config_file,
      `Include ${config_file}.more\nHost log?n\n${common}  User ${server.user}\n  Port ${server.port}\n  ProxyJump gate\n` +
        'Host odd\n  ProxyCommand nc %h %p\nHost ring\n  ProxyJump ring2\nHost ring2\n  ProxyJump ring\n',
    );
    const found = await targetOf({ host: 'login', proxy_jump: [], config_file });
    expect(found).toMatchObject({
      host: '127.0.0.1',
      port: server.port,
      user: server.user,
      jumps: [{ host: '127.0.0.1', port: jump.port, user: jump.user }],
      known_hosts_file: known,
    });
    expect(found.identity_files).toContain(server.identity_file);
    const connection = await SshConnection.open(found);
    expect((await connection.exec(['true'])).code).toBe(0);
    connection.close();
    // What the site config says is stronger.
    const settings = { host: 'login', user: 'ada', port: 7, proxy_jump: ['bob@gate:9'], config_file };
    expect(await targetOf(settings)).toMatchObject({
      user: 'ada',
      port: 7,
      jumps: [{ host: '127.0.0.1', port: 9, user: 'bob' }],
    });
    const refused = (host: string): unknown => targetOf({ host, proxy_jump: [], config_file });
    await expect(refused('odd')).rejects.toThrow(/ProxyCommand/);
    await expect(refused('ring')).rejects.toThrow(/more than 8 hosts/);
    writeFileSync(config_file, 'Host a\n  NoSuchKeyword 1\n');
    await expect(refused('a')).rejects.toMatchObject({ code: 'E_SSH_TARGET' });
    // A name is never taken for an option.
    await expect(refused('-oProxyCommand=touch /tmp/x')).rejects.toMatchObject({ code: 'E_SSH_TARGET' });
  });

  it('refuses a host whose key is not known, and says its fingerprint', async () => {
    const empty = join(server.folder, 'known_none');
    writeFileSync(empty, '# nobody\n');
    const fingerprint = execFileSync('ssh-keygen', ['-l', '-f', join(server.folder, 'host_ed25519.pub')], {
      encoding: 'utf8',
    }).split(' ')[1]!;
    await expect(SshConnection.open(target({ known_hosts_file: empty }))).rejects.toMatchObject({
      code: 'E_SSH_HOST_KEY',
      because: expect.arrayContaining([expect.stringContaining(fingerprint)]),
    });
  });

  it('refuses a host with another key than before', async () => {
    const other = readFileSync(jump.known_hosts_file, 'utf8').replace(String(jump.port), String(server.port));
    const file = join(server.folder, 'known_other');
    writeFileSync(file, other);
    await expect(SshConnection.open(target({ known_hosts_file: file }))).rejects.toThrow(
      /another than before/,
    );
  });

  it('asks for the kind of host key that is known', async () => {
    const rsa = readFileSync(join(server.folder, 'host_rsa.pub'), 'utf8').split(' ').slice(0, 2).join(' ');
    const file = join(server.folder, 'known_rsa');
    writeFileSync(file, `[127.0.0.1]:${server.port} ${rsa}\n`);
    const connection = await SshConnection.open(target({ known_hosts_file: file }));
    connection.close();
  });

  it('uses the keys of an agent', async () => {
    const socket = join(server.folder, 'agent.sock');
    const agent = spawn('ssh-agent', ['-D', '-a', socket], { stdio: 'ignore' });
    try {
      await expect.poll(() => existsSync(socket)).toBe(true);
      execFileSync('ssh-add', ['-q', server.identity_file], {
        env: { ...process.env, SSH_AUTH_SOCK: socket },
      });
      const keyless = target({ identity_files: [] });
      const connection = await SshConnection.open(keyless, { agent_socket: socket });
      expect((await connection.exec(['true'])).code).toBe(0);
      connection.close();
    } finally {
      agent.kill();
    }
  });

  it('asks for the passphrase of a key, and tells what was tried where nothing helps', async () => {
    const locked = join(server.folder, 'locked');
    execFileSync('cp', [server.identity_file, locked]);
    execFileSync('ssh-keygen', ['-q', '-p', '-P', '', '-N', 'secret words', '-f', locked]);
    const asked: string[] = [];
    const answers = ['wrong', 'secret words'];
    const connection = await SshConnection.open(target({ identity_files: [locked] }), {
      ask: async (question) => {
        asked.push(question);
        return answers.shift()!;
      },
    });
    connection.close();
    expect(asked).toEqual([`Passphrase of ${locked}: `, `Passphrase of ${locked}: `]);
    const stranger = join(jump.folder, 'id');
    await expect(SshConnection.open(target({ identity_files: [stranger] }))).rejects.toMatchObject({
      code: 'E_SSH_AUTHENTICATION',
      because: [expect.stringContaining(stranger)],
    });
  });

  it('that breaks ends the command with an error, and says that it is gone', async () => {
    const connection = await SshConnection.open(target());
    const running = connection.exec(['sleep', '60']);
    const failed = expect(running).rejects.toMatchObject({ code: 'E_SSH_CONNECT' });
    server.dropConnections();
    await failed;
    await connection.closed;
  });

  it('takes a command for ended, not for lost, whose whole life comes in one packet', async () => {
    // As on a machine under load: what the server says piles up, and is read at once.
    const relay = createRelay((client) => {
      const upstream = connect(server.port, '127.0.0.1');
      client.pipe(upstream);
      const held: Buffer[] = [];
      let flush: NodeJS.Timeout | undefined;
      upstream.on('data', (chunk) => {
        held.push(chunk);
        clearTimeout(flush);
        flush = setTimeout(() => client.write(Buffer.concat(held.splice(0))), 500);
      });
      client.on('close', () => upstream.destroy());
    });
    await new Promise<void>((resolve) => relay.listen(0, '127.0.0.1', resolve));
    const { port } = relay.address() as { port: number };
    const known = join(server.folder, 'known_relay');
    writeFileSync(
      known,
      readFileSync(server.known_hosts_file, 'utf8').replaceAll(String(server.port), String(port)),
    );
    const connection = await SshConnection.open(target({ port, known_hosts_file: known }));
    for (let times = 0; times < 3; times++)
      expect(await connection.exec(['sh', '-c', 'echo short; exit 3'])).toMatchObject({
        code: 3,
        stdout: 'short\n',
      });
    connection.close();
    await connection.closed;
    relay.close();
  });

  it('that nobody answers is an error with the port', async () => {
    await expect(SshConnection.open(target({ port: 1 }))).rejects.toMatchObject({
      code: 'E_SSH_CONNECT',
      message: expect.stringContaining('port 1'),
    });
  });
});
