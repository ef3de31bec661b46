/** A mesh folder that several people share, or that somebody else can reach. */
import { execFileSync, spawn } from 'node:child_process';
import { createHmac } from 'node:crypto';
import { chmod, chown, lstat, mkdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { encode, rfc8949EncodeOptions } from 'cborg';
import { describe, expect, test } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import { LocalSession, RendezvousRegistry, SessionIdentity } from '../../mesh/index.ts';
import { loadOrCreateNetworkKey } from '../../mesh/network-key.ts';
import { openRecord, RecordRejected, sealRecord } from '../../mesh/record-codec.ts';
import { eventually, metadata, recordOf, scratchFolder } from '../mesh/support.ts';

const root = process.getuid?.() === 0;

function open(folder: string): Promise<RendezvousRegistry> {
  return RendezvousRegistry.open(folder, { create: true, poll_ms: 50, refresh_min_ms: 0 });
}

describe('the record of a living session', () => {
  test.each<[string, (path: string, old: Buffer) => Promise<void>]>([
    ['an older one of its own', (path, old) => writeFile(path, old)],
    ['anything', (path) => writeFile(path, 'x')],
    ['nothing', (path) => writeFile(path, '')],
    ['much more than a record', (path) => writeFile(path, Buffer.alloc(1 << 20))],
    [
      'a link to another file',
      async (path) => {
        await rm(path);
        await symlink('/etc/passwd', path);
      },
    ],
  ])(
    'overwritten with %s, is put right by its owner, so that late comers see the truth',
    async (_what, spoil) => {
      await using scratch = await scratchFolder();
      const registry = await open(scratch.path);
      const own = await LocalSession.join(registry, metadata);
      const path = join(scratch.path, 'sessions', `${own.id}.rec`);
      const old = await readFile(path);
      await own.update({ lifecycle: 'SERVING' });
      const right = await readFile(path);
      await spoil(path, old);
      await eventually(async () => right.equals(await readFile(path)), 'its owner has put it right');
      expect((await lstat(path)).isFile()).toBe(true);
      const late = await open(scratch.path);
      expect(late.get(own.id)?.lifecycle).toBe('SERVING');
      await late.close();
      await registry.close();
    },
  );
});

describe('the network key', () => {
  test('in a folder that anybody may write to is not trusted', async () => {
    await using scratch = await scratchFolder();
    await loadOrCreateNetworkKey(scratch.path);
    await chmod(scratch.path, 0o1777);
    await expect(open(scratch.path)).rejects.toMatchObject({
      code: 'E_MESH_KEY',
      because: [expect.stringContaining('anybody could have put it there')],
    });
  });

  test.skipIf(!root)(
    'that is neither of the reader nor of the owner of the folder is not trusted',
    async () => {
      await using scratch = await scratchFolder();
      const folder = join(scratch.path, 'mesh');
      await loadOrCreateNetworkKey(folder);
      await chown(join(folder, 'network.key'), 65_534, 65_534);
      await expect(open(folder)).rejects.toMatchObject({
        code: 'E_MESH_KEY',
        because: [expect.stringContaining('user id 65534')],
      });
    },
  );
});

describe.skipIf(!root)('a mesh of a group', () => {
  const group = 65_533;
  const member = { uid: 65_534, gid: group };

  /** Joins as another user, from a process of its own with the umask of an agent, and tells what it sees. */
  function join_as(user: { uid: number; gid: number }, folder: string) {
    const script = `
      process.umask(0o077);
      const { RendezvousRegistry, LocalSession } = await import(${JSON.stringify(join(packageRoot, 'dist/mesh/index.js'))});
      try {
        const registry = await RendezvousRegistry.open(process.argv[1], { create: false, poll_ms: 50 });
        const own = await LocalSession.join(registry, ${JSON.stringify({ ...metadata, node: 'theirs' })});
        console.log(JSON.stringify({ id: own.id, sees: registry.snapshot().map((record) => record.metadata.node), state: registry.status().state }));
        process.stdin.on('end', () => process.exit()).resume();
      } catch (error) { console.log(JSON.stringify({ code: error.code ?? error.message })); }`;
    const child = spawn(process.execPath, ['--input-type=module', '-e', script, folder], {
      ...user,
      cwd: '/',
      env: {},
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    const told = new Promise<{ id?: string; sees?: string[]; state?: string; code?: string }>((resolve) => {
      child.stdout.once('data', (line: Buffer) => resolve(JSON.parse(line.toString())));
    });
    return { told, end: () => child.stdin.end() };
  }

  test('is read and written by all of the group under the umask of agents, and by nobody else', async () => {
    await using scratch = await scratchFolder();
    await chmod(scratch.path, 0o755);
    const folder = join(scratch.path, 'mesh');
    await mkdir(folder);
    await chown(folder, 0, group);
    await chmod(folder, 0o2770);
    await loadOrCreateNetworkKey(folder);
    await chown(join(folder, 'network.key'), 0, group);
    await chmod(join(folder, 'network.key'), 0o640);

    const before = process.umask(0o077);
    const registry = await open(folder);
    const own = await LocalSession.join(registry, { ...metadata, node: 'mine' });
    process.umask(before);
    expect((await stat(join(folder, 'sessions'))).mode & 0o7777).toBe(0o2770);
    const record = await stat(join(folder, 'sessions', `${own.id}.rec`));
    expect([record.mode & 0o777, record.gid]).toEqual([0o640, group]);

    const other = join_as(member, folder);
    const told = await other.told;
    expect(told).toMatchObject({ state: 'ok', sees: expect.arrayContaining(['mine', 'theirs']) });
    await eventually(() => registry.get(told.id!)?.metadata.node === 'theirs', 'each sees the other');
    other.end();

    expect(await join_as({ uid: 65_534, gid: 65_534 }, folder).told).toEqual({ code: 'E_MESH_KEY' });
    await registry.close();
  });
});

describe('records that a member made with care', () => {
  const key = Buffer.alloc(32, 7);
  const options = rfc8949EncodeOptions;

  /** An envelope that passes every check of membership, around any body. */
  async function envelopeOf(body: Uint8Array): Promise<Uint8Array> {
    const identity = await SessionIdentity.create();
    const signer = identity.public_key;
    const signature = identity.sign(Buffer.concat([Buffer.from('hpcserve record v1\0'), body]));
    const mac = createHmac('sha256', key)
      .update(encode(['hpcserve record v1', body, signer, signature], options))
      .digest();
    return encode({ format: 1, kind: 'record', body, signer, signature, mac: new Uint8Array(mac) }, options);
  }

  test('the envelope of this test is a good one', async () => {
    const identity = await SessionIdentity.create();
    const good = await envelopeOf(encode(recordOf(identity), options));
    expect(() => openRecord(good, key)).toThrow('signed by a key that is not that of session');
  });

  test.each<[string, Uint8Array]>([
    ['a hundred thousand nested lists', Buffer.alloc(100_000, 0x81)],
    ['a list that claims four thousand million entries', Buffer.from('9affffffff', 'hex')],
    ['a text that claims to be huge', Buffer.from('7bffffffffffffffff', 'hex')],
    ['a member called __proto__', encode(JSON.parse('{"__proto__":{"lifecycle":"SERVING"}}'), options)],
    ['not a number', Buffer.from('f97e00', 'hex')],
    ['undefined', Buffer.from('f7', 'hex')],
    ['an endless list', Buffer.from('9f', 'hex')],
  ])('%s: rejected, inside and outside of an envelope', async (_what, body) => {
    for (const bytes of [new Uint8Array(body), await envelopeOf(new Uint8Array(body))]) {
      expect(() => openRecord(bytes, key)).toThrow(RecordRejected);
    }
    expect(({} as { lifecycle?: string }).lifecycle).toBe(undefined);
  });

  test.each([
    ['a node that ends a header field', { node: 'n1\r\nset-cookie: x' }],
    ['a node that no header field can hold', { node: 'nœud' }],
    ['an engine that ends a header field', { engine: 'native\n' }],
    ['a name that acts on terminals', { hostname: '\x1b[2J' }],
    ['a device that acts on terminals', { devices: [{ ...metadata.devices[0]!, model: '\x9b1m' }] }],
  ])('%s', async (_what, change) => {
    const identity = await SessionIdentity.create();
    const record = recordOf(identity, { metadata: { ...metadata, ...change } });
    expect(() => openRecord(sealRecord(record, identity, key), key)).toThrow(RecordRejected);
  });

  test.each([
    ['::', 80],
    ['0.0.0.0', 80],
    ['255.255.255.255', 80],
    ['ff02::1', 80],
    ['fe80::1%eth0', 80],
    ['a b', 80],
    ['evil.org/x?', 80],
    ['evil.org\r\nx: y', 80],
    ['user@evil.org', 80],
    ['127.1', 80],
    ['10.0.0.1', 0],
    ['10.0.0.1', 65_536],
  ])('the address %j:%i is nowhere that anybody connects to', async (host, port) => {
    const identity = await SessionIdentity.create();
    const record = recordOf(identity, { metadata: { ...metadata, addresses: [{ host, port }] } });
    expect(() => openRecord(sealRecord(record, identity, key), key)).toThrow(/address/);
  });
});

test('a record under the name of another session, by a hard link, does not count', async () => {
  await using scratch = await scratchFolder();
  const folder = join(scratch.path, 'mesh');
  const registry = await open(folder);
  const own = await LocalSession.join(registry, metadata);
  // The record under another session's name, by a hard link: the bytes are good, the name is not.
  const sessions = join(folder, 'sessions');
  execFileSync('ln', [join(sessions, `${own.id}.rec`), join(sessions, `${'0'.repeat(32)}.rec`)]);
  await eventually(() => registry.status().rejected.wrong_name === 1, 'it is rejected');
  expect(registry.snapshot()).toHaveLength(1);
  await registry.close();
});
