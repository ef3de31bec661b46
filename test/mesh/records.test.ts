import { createHmac } from 'node:crypto';
import { decode, encode, rfc8949EncodeOptions } from 'cborg';
import fc from 'fast-check';
import { beforeAll, describe, expect, test } from 'vitest';
import { SessionIdentity } from '../../mesh/index.ts';
import {
  encodeRecord,
  openRecord,
  openTombstone,
  sealRecord,
  sealTombstone,
} from '../../mesh/record-codec.ts';
import { isDialableHost } from '../../mesh/record-schema.ts';
import { type DeviceDescription, lifecycles, type SessionRecord } from '../../spec/session-record.ts';
import { metadata, recordOf } from './support.ts';

const networkKey = new Uint8Array(32).fill(7);
let identity: SessionIdentity;
let other: SessionIdentity;

beforeAll(async () => {
  identity = await SessionIdentity.create();
  other = await SessionIdentity.create();
});

function arbitraryRecord(): fc.Arbitrary<SessionRecord> {
  return fc
    .record({
      lifecycle: fc.constantFrom(...lifecycles),
      version: fc.nat(2),
      node: fc.constantFrom('a', 'b', 'c'),
    })
    .map(({ lifecycle, version, node }) =>
      recordOf(identity, { lifecycle, version, metadata: { ...metadata, node } }),
    );
}

describe('the encoding of a record', () => {
  test('does not depend on the order or absence of keys', () => {
    const record = recordOf(identity);
    const shuffled = Object.fromEntries(Object.entries(record).reverse()) as unknown as SessionRecord;
    const explicit = { ...record, metadata: { ...record.metadata, job_id: undefined } } as SessionRecord;
    expect(encodeRecord(shuffled)).toEqual(encodeRecord(record));
    expect(encodeRecord(explicit)).toEqual(encodeRecord(record));
  });

  test('survives the round trip through an envelope', () => {
    fc.assert(
      fc.property(arbitraryRecord(), (record) => {
        expect(openRecord(sealRecord(record, identity, networkKey), networkKey)).toEqual(record);
      }),
      { numRuns: 20 },
    );
  });

  test('what a newer member says beyond this version is dropped, not refused', () => {
    const newer = { ...recordOf(identity), mood: 'good' } as SessionRecord;
    expect(openRecord(sealRecord(newer, identity, networkKey), networkKey)).toEqual(recordOf(identity));
  });
});

describe('the link of a device', () => {
  const received = (link: unknown): unknown => {
    const device = { kind: 'mig', model: 'x', memory_bytes: 1, isa: [], link } as DeviceDescription;
    const record = recordOf(identity, { metadata: { ...metadata, devices: [device] } });
    const [read] = openRecord(sealRecord(record, identity, networkKey), networkKey).metadata.devices;
    expect(read).toMatchObject({ kind: 'mig', model: 'x' });
    return read!.link;
  };

  test('is told as it is; what is no name is as if nothing had been told', () => {
    expect(received('GPU-5f0a')).toBe('GPU-5f0a');
    for (const bad of [undefined, null, 7, -1, {}, '\u001b[2J', 'x'.repeat(1025)])
      expect(received(bad)).toBeUndefined();
  });
});

describe('an envelope that is not right', () => {
  test('of another mesh', () => {
    const envelope = sealRecord(recordOf(identity), identity, new Uint8Array(32).fill(8));
    expect(() => openRecord(envelope, networkKey)).toThrow(
      expect.objectContaining({ reason: 'foreign_key' }),
    );
  });

  test('with any single bit changed', () => {
    const envelope = sealRecord(recordOf(identity), identity, networkKey);
    fc.assert(
      fc.property(fc.nat(envelope.length - 1), fc.nat(7), (byte, bit) => {
        const changed = Uint8Array.from(envelope);
        changed[byte]! ^= 1 << bit;
        expect(() => openRecord(changed, networkKey)).toThrow(
          expect.objectContaining({ name: 'RecordRejected' }),
        );
      }),
    );
  });

  test('signed by a member for another session', () => {
    const forged = { ...recordOf(other), session_id: identity.session_id };
    const disguised = Object.create(other, {
      session_id: { value: identity.session_id },
      public_key: { value: other.public_key },
      sign: { value: (bytes: Uint8Array) => other.sign(bytes) },
    }) as SessionIdentity;
    const envelope = sealRecord(forged, disguised, networkKey);
    expect(() => openRecord(envelope, networkKey)).toThrow(expect.objectContaining({ reason: 'forged' }));
  });

  test('with a signature that does not fit, by somebody who has the network key', () => {
    const envelope = decode(sealRecord(recordOf(identity), identity, networkKey)) as Record<
      string,
      Uint8Array
    >;
    const signature = new Uint8Array(64).fill(1);
    const mac = createHmac('sha256', networkKey)
      .update(encode(['hpcserve record v1', envelope.body, envelope.signer, signature], rfc8949EncodeOptions))
      .digest();
    const forged = encode({ ...envelope, signature, mac: new Uint8Array(mac) }, rfc8949EncodeOptions);
    expect(() => openRecord(forged, networkKey)).toThrow(expect.objectContaining({ reason: 'forged' }));
  });

  test('a tombstone does not pass as a record, nor a record as a tombstone', () => {
    const tombstone = sealTombstone(
      { session_id: identity.session_id, evidence: 'job ended' },
      other,
      networkKey,
    );
    expect(openTombstone(tombstone, networkKey).evidence).toBe('job ended');
    expect(() => openRecord(tombstone, networkKey)).toThrow(expect.objectContaining({ reason: 'malformed' }));
    const record = sealRecord(recordOf(identity), identity, networkKey);
    expect(() => openTombstone(record, networkKey)).toThrow(expect.objectContaining({ reason: 'malformed' }));
  });

  test('any bytes whatsoever', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => {
        expect(() => openRecord(bytes, networkKey)).toThrow(
          expect.objectContaining({ name: 'RecordRejected' }),
        );
      }),
    );
    const deep = new Uint8Array(100_000).fill(0x81); // arrays in arrays
    expect(() => openRecord(deep, networkKey)).toThrow(expect.objectContaining({ reason: 'malformed' }));
  });

  test('too large', () => {
    const models = Array.from({ length: 300 }, () => ({
      name: 'm'.repeat(1000),
      aliases: [],
      state: 'serving' as const,
      precision: 'f16',
      context_tokens: 1,
    }));
    const record = recordOf(identity, { metadata: { ...metadata, models } });
    expect(() => sealRecord(record, identity, networkKey)).toThrow(RangeError);
    expect(() => openRecord(new Uint8Array(200_000), networkKey)).toThrow(
      expect.objectContaining({ reason: 'oversized' }),
    );
  });

  test('a record of another session cannot be sealed at all', () => {
    expect(() => sealRecord(recordOf(other), identity, networkKey)).toThrow(TypeError);
  });

  test.each([
    ['an address that is none', { addresses: [{ host: 'a b', port: 1 }] }],
    ['a port out of range', { addresses: [{ host: '10.0.0.1', port: 70000 }] }],
    ['an unknown role', { role: 'king' }],
  ])('%s', (_what, change) => {
    const record = recordOf(identity, { metadata: { ...metadata, ...change } as typeof metadata });
    expect(() => openRecord(sealRecord(record, identity, networkKey), networkKey)).toThrow(
      expect.objectContaining({ reason: 'malformed' }),
    );
  });
});

test.each([
  ['10.1.2.3', true],
  ['127.0.0.1', true],
  ['fe80::1', true],
  ['nid001234', true],
  ['node-1.cluster.example', true],
  ['0.0.0.0', false],
  ['224.0.0.1', false],
  ['255.255.255.255', false],
  ['::', false],
  ['ff02::1', false],
  ['fe80::1%eth0', false],
  ['1.2.3', false],
  ['', false],
  ['host/path', false],
  ['user@host', false],
  ['host:80', false],
  ['a..b', false],
  ['-x', false],
])('isDialableHost(%j) is %s', (host, expected) => {
  expect(isDialableHost(host)).toBe(expected);
});
