/** What a record proves of its provider, and what does not count as proof. */
import { createHmac } from 'node:crypto';
import { chmodSync, mkdirSync, renameSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { decode, encode, rfc8949EncodeOptions } from 'cborg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Delegation, launchScope, ProviderKey, SessionIdentity } from '../../mesh/index.ts';
import { encodeRecord, openRecord, sealRecord } from '../../mesh/record-codec.ts';
import { provenProviderOf, type SessionMetadata } from '../../spec/session-record.ts';
import { providerKeyFileOf, type TestProvider, testProvider } from './providers.ts';
import { metadata, recordOf, scratchFolder } from './support.ts';

const networkKey = new Uint8Array(32).fill(7);
const launch_id = '0123456789abcdef';
let scratch: AsyncDisposable & { path: string };
let alice: TestProvider;
let mallory: TestProvider;
let identity: SessionIdentity;
let other: SessionIdentity;

beforeAll(async () => {
  scratch = await scratchFolder();
  const folder = (name: string): string => {
    mkdirSync(join(scratch.path, name));
    return join(scratch.path, name);
  };
  // Both bear the same name: it is the key that counts.
  alice = testProvider(folder('alice'), 'alice@cscs');
  mallory = testProvider(folder('mallory'), 'alice@cscs');
  identity = await SessionIdentity.create();
  other = await SessionIdentity.create();
});
afterAll(() => scratch[Symbol.asyncDispose]());

const ofLaunch = (change: Partial<SessionMetadata> = {}): SessionMetadata => ({
  ...metadata,
  provider: 'alice@cscs',
  launch_id,
  ...change,
});

function opened(
  delegation: Delegation | undefined,
  change: Partial<SessionMetadata> = {},
  certified = identity,
) {
  const record = recordOf(identity, { metadata: ofLaunch(change) });
  const credential = delegation?.certify(certified.public_key);
  return openRecord(sealRecord(record, identity, networkKey, credential), networkKey);
}

describe('a record proves its provider', () => {
  test('by the key that vouched for its launch, whoever bears the name', () => {
    const record = opened(alice.launch(launch_id));
    expect(record.provider_id).toBe(alice.id);
    expect(provenProviderOf(record, Date.now())).toBe(alice.id);
    expect(opened(mallory.launch(launch_id)).provider_id).toBe(mallory.id);
    expect(mallory.id).not.toBe(alice.id);
  });

  test('and none without a credential, or by saying so', () => {
    expect(opened(undefined).provider_id).toBeUndefined();
    const claims = { ...recordOf(identity), provider_id: alice.id, proven_until_ms: 1e15 };
    expect(openRecord(sealRecord(claims, identity, networkKey), networkKey)).toEqual(recordOf(identity));
  });

  test('as long as its delegation lasts', () => {
    const record = opened(alice.launch(launch_id, -1));
    // Taken by all members alike, whatever their clocks; the proof is over all the same.
    expect(record.provider_id).toBe(alice.id);
    expect(provenProviderOf(record, Date.now())).toBeUndefined();
    // It ends with a whole second, and this process may stand still in between.
    expect(provenProviderOf(record, Date.now() - 60_000)).toBe(alice.id);
  });

  test('in fewer than 250 bytes', () => {
    const record = recordOf(identity, { metadata: ofLaunch() });
    const credential = alice.launch(launch_id).certify(identity.public_key);
    expect(encodeRecord(record, credential).length - encodeRecord(record).length).toBeLessThan(250);
  });
});

describe('a record is forged', () => {
  test.each<[string, Partial<SessionMetadata>]>([
    ['another launch', { launch_id: 'fedcba9876543210' }],
    ['no launch', { launch_id: undefined as unknown as string }],
    ['a gateway', { role: 'gateway' }],
    ['another name', { provider: 'root@cscs' }],
  ])('where its delegation is not for it: %s', (_what, change) => {
    expect(() => opened(alice.launch(launch_id), change)).toThrow(
      expect.objectContaining({ reason: 'forged' }),
    );
  });

  test('where a gateway’s delegation is used for a launch', () => {
    expect(() => opened(alice.gateway())).toThrow(expect.objectContaining({ reason: 'forged' }));
  });

  test('where the launch’s key signed the key of another session', () => {
    expect(() => opened(alice.launch(launch_id), {}, other)).toThrow(
      expect.objectContaining({ reason: 'forged' }),
    );
  });

  test.each(['provider_key', 'launch_key', 'not_after_s', 'delegation', 'certificate'] as const)(
    'where its %s was exchanged',
    (part) => {
      const mine = mallory.launch(launch_id, 7200).certify(identity.public_key);
      const credential = { ...alice.launch(launch_id).certify(identity.public_key), [part]: mine[part] };
      const record = recordOf(identity, { metadata: ofLaunch() });
      const envelope = sealRecord(record, identity, networkKey, credential);
      expect(() => openRecord(envelope, networkKey)).toThrow(expect.objectContaining({ reason: 'forged' }));
    },
  );

  test('where a member takes the credential out of the record of another', () => {
    const record = recordOf(identity, { metadata: ofLaunch() });
    const credential = alice.launch(launch_id).certify(identity.public_key);
    const envelope = decode(sealRecord(record, identity, networkKey, credential)) as Record<
      string,
      Uint8Array
    >;
    const body = encodeRecord(record);
    const { signer, signature } = envelope;
    const parts = ['hpcserve record v1', body, signer, signature];
    const mac = createHmac('sha256', networkKey).update(encode(parts, rfc8949EncodeOptions)).digest();
    const stripped = encode({ ...envelope, body, mac }, rfc8949EncodeOptions);
    expect(() => openRecord(stripped, networkKey)).toThrow(expect.objectContaining({ reason: 'forged' }));
  });

  test('where its credential has another form', () => {
    const record = { ...recordOf(identity, { metadata: ofLaunch() }), credential: [new Uint8Array(32)] };
    expect(() => openRecord(sealRecord(record, identity, networkKey), networkKey)).toThrow(
      expect.objectContaining({ reason: 'malformed' }),
    );
  });
});

describe('the key of a provider', () => {
  test('is made once, for its user alone', () => {
    const file = join(scratch.path, 'deep', 'er', 'provider.key');
    const key = ProviderKey.loadOrCreate(file);
    expect(ProviderKey.loadOrCreate(file).id).toBe(key.id);
    expect(statSync(file).mode & 0o777).toBe(0o600);
    expect(ProviderKey.load(join(scratch.path, 'none.key'))).toBeUndefined();
  });

  test.each<[string, (file: string) => void]>([
    ['others can read it', (file) => chmodSync(file, 0o640)],
    ['it is a link', (file) => [renameSync(file, `${file}.1`), symlinkSync(`${file}.1`, file)]],
    ['it holds no key', (file) => writeFileSync(file, 'hello')],
    ['it is large', (file) => writeFileSync(file, 'x'.repeat(5000))],
  ])('is not used where %s', (what, spoil) => {
    const file = join(scratch.path, `${what.replaceAll(' ', '-')}.key`);
    ProviderKey.loadOrCreate(file);
    spoil(file);
    expect(() => ProviderKey.loadOrCreate(file)).toThrow(expect.objectContaining({ code: 'E_PROVIDER_KEY' }));
  });

  test('gives a job a file that is good for nothing else', async () => {
    const path = join(scratch.path, 'delegation.json');
    const text = alice.launch(launch_id).toText();
    const secret = ProviderKey.load(providerKeyFileOf(join(scratch.path, 'alice'), 'alice@cscs'));
    expect(secret?.id).toBe(alice.id);
    const write = (content: string, mode = 0o600): void => {
      writeFileSync(path, content, { mode });
      chmodSync(path, mode);
    };
    const read = (scope = launchScope(launch_id)): Promise<Delegation | undefined> =>
      Delegation.read(path, scope);
    expect(await read()).toBeUndefined();
    write(text);
    expect((await read())?.provider_id).toBe(alice.id);
    expect((await read())?.toText()).toBe(text);
    const refused = expect.objectContaining({ code: 'E_DELEGATION' });
    await expect(read(launchScope('fedcba9876543210'))).rejects.toEqual(refused);
    write(text, 0o644);
    await expect(read()).rejects.toEqual(refused);
    const later = { ...JSON.parse(text), not_after_s: 2 ** 39 };
    for (const content of ['{', '{}', JSON.stringify(later)]) {
      write(content);
      await expect(read()).rejects.toEqual(refused);
    }
    write(
      JSON.stringify({
        ...JSON.parse(text),
        provider_key: JSON.parse(mallory.launch(launch_id).toText()).provider_key,
      }),
    );
    await expect(read()).rejects.toEqual(refused);
  });
});
