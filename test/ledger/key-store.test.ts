/** API keys in a folder that several gateways share. */
import {
  chmodSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { KeyStore } from '../../ledger/index.ts';

let folder: string;
const open: KeyStore[] = [];

beforeEach(() => {
  folder = join(mkdtempSync(join(tmpdir(), 'hpcserve-keys-test-')), 'keys');
});

afterEach(() => {
  for (const store of open.splice(0)) store.close();
  rmSync(join(folder, '..'), { recursive: true, force: true });
});

async function opened(options: Parameters<typeof KeyStore.open>[1] = {}): Promise<KeyStore> {
  const store = await KeyStore.open(folder, { poll_ms: 60_000, ...options });
  open.push(store);
  return store;
}

describe('a key', () => {
  it('is shown once, kept as a hash for its owner alone, and found again by another process', async () => {
    const store = await opened();
    const { key, secret } = store.create('alice', { models: ['m'] });
    expect(secret).toMatch(/^hsk-[0-9A-Za-z]{43}$/);
    expect(store.find(secret)).toEqual(key);
    expect(statSync(folder).mode & 0o077).toBe(0);
    for (const file of readdirSync(folder)) {
      expect(readFileSync(join(folder, file)).includes(secret.slice(4))).toBe(false);
      expect(statSync(join(folder, file)).mode & 0o077).toBe(0);
    }
    expect((await opened()).find(secret)).toEqual(key);
    expect(await KeyStore.read(folder)).toEqual([key]);
    expect(await KeyStore.read(join(folder, 'none'))).toEqual([]);
  });

  it('does not resemble another', async () => {
    const store = await opened();
    const secrets = new Set(Array.from({ length: 50 }, (_, index) => store.create(`k${index}`).secret));
    expect(secrets.size).toBe(50);
  });

  it('ends when revoked: here at once, elsewhere with the next look, and after a restart', async () => {
    let now_ms = 1;
    const store = await opened({ now_ms: () => now_ms++ });
    const other = await opened();
    const { key, secret } = store.create('alice');
    const kept = store.create('bob');
    expect(other.find(secret)).toBeUndefined();
    await other.lookForNew();
    expect(other.find(secret)).toEqual(key);
    store.revoke(key.id);
    expect(store.find(secret)).toBeUndefined();
    await other.refresh();
    expect(other.find(secret)).toBeUndefined();
    expect(other.find(kept.secret)?.name).toBe('bob');
    expect(
      (await opened()).list().map(({ name, revoked_at_ms }) => [name, revoked_at_ms !== undefined]),
    ).toEqual([
      ['alice', true],
      ['bob', false],
    ]);
    expect(() => store.revoke('key_none')).toThrow(expect.objectContaining({ code: 'E_KEY_UNKNOWN' }));
  });

  it('stays revoked when another gateway, which does not know yet, changes its settings', async () => {
    const store = await opened();
    const { key, secret } = store.create('alice');
    const unaware = await opened();
    store.revoke(key.id);
    unaware.change(key.id, { requests_per_minute: 5 });
    expect(unaware.find(secret)?.settings).toEqual({ requests_per_minute: 5 });
    await Promise.all([store.refresh(), unaware.refresh()]);
    for (const each of [store, unaware, await opened()]) expect(each.find(secret)).toBeUndefined();
  });

  it('is not found by an old secret once its file has the hash of another', async () => {
    const store = await opened();
    const [one, two] = [store.create('alice'), store.create('bob')];
    const file = (id: string): string => join(folder, `${id}.json`);
    const read = (id: string): { hash: string } =>
      JSON.parse(readFileSync(file(id), 'utf8')) as { hash: string };
    const { hash } = read(two.key.id);
    const edited = { ...read(one.key.id), hash: hash.replace(/^./, (first) => (first === '0' ? '1' : '0')) };
    writeFileSync(file(one.key.id), JSON.stringify(edited), { mode: 0o600 });
    await store.refresh();
    expect([store.find(one.secret), store.find(two.secret)?.name]).toEqual([undefined, 'bob']);
  });

  it('keeps what several gateways change of its settings', async () => {
    const store = await opened();
    const other = await opened();
    const { key, secret } = store.create('alice', { qos: 'tier=stable', models: ['m'] });
    await other.refresh();
    store.change(key.id, { models: ['m', 'n'], budget: { tokens: 7, window: 'day' } });
    other.change(key.id, { qos: null, tokens_per_minute: 9 });
    await store.refresh();
    const settings = { models: ['m', 'n'], budget: { tokens: 7, window: 'day' }, tokens_per_minute: 9 };
    expect(store.find(secret)?.settings).toEqual(settings);
    expect(other.find(secret)?.settings).toEqual(settings);
  });

  it('is gone when its file is', async () => {
    const store = await opened();
    const { key, secret } = store.create('alice');
    rmSync(join(folder, `${key.id}.json`));
    await store.refresh();
    expect(store.find(secret)).toBeUndefined();
    expect(store.list()).toEqual([]);
  });
});

describe('the folder', () => {
  it('may hold what is no key', async () => {
    const store = await opened();
    const { secret } = store.create('alice');
    writeFileSync(join(folder, 'key_half.json'), '{"format":1,');
    writeFileSync(
      join(folder, 'key_other.json'),
      JSON.stringify({ format: 1, id: 'key_another', name: 'x' }),
    );
    writeFileSync(join(folder, 'notes.txt'), 'x');
    const again = await opened();
    expect(again.list().map(({ name }) => name)).toEqual(['alice']);
    expect(again.find(secret)?.name).toBe('alice');
  });

  it('may be away for a while: keys stay valid, and that is said once', async () => {
    const said: (string | undefined)[] = [];
    const store = await opened({ onTrouble: (reason) => said.push(reason) });
    const { secret } = store.create('alice');
    const kept = `${folder}-away`;
    renameSync(folder, kept);
    await store.refresh();
    await store.refresh();
    expect(store.find(secret)?.name).toBe('alice');
    expect(() => store.create('bob')).toThrow(expect.objectContaining({ code: 'E_KEY_FOLDER' }));
    renameSync(kept, folder);
    await store.refresh();
    expect(said).toEqual([expect.stringContaining('ENOENT'), undefined]);
    expect(store.list()).toHaveLength(1);
  });

  it('is closed to others where it was open', async () => {
    await opened();
    chmodSync(folder, 0o755);
    await opened();
    expect(statSync(folder).mode & 0o077).toBe(0);
  });

  it('takes over keys of ledgers from before, once', async () => {
    const store = await opened();
    const former = { id: 'key_old', name: 'old', hash: 'h1', created_at_ms: 1 };
    store.adopt([former, { id: 'key_gone', name: 'gone', hash: 'h2', created_at_ms: 2, revoked_at_ms: 3 }]);
    store.change('key_old', { qos: 'tier=stable' });
    const again = await opened();
    again.adopt([former]);
    expect(again.list()).toEqual([
      { id: 'key_old', name: 'old', created_at_ms: 1, settings: { qos: 'tier=stable' } },
      { id: 'key_gone', name: 'gone', created_at_ms: 2, revoked_at_ms: 3, settings: {} },
    ]);
  });
});
