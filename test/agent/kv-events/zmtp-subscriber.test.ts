/** What comes on a socket of events, cut and spoiled in every way: whole messages, or an error, in bounded memory. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { readEngineEvents } from '../../../agent/kv-events/engine-events.ts';
import { readMessagePack } from '../../../agent/kv-events/message-pack.ts';
import { ZmtpReader } from '../../../agent/kv-events/zmtp-subscriber.ts';

const bounds = { frame_bytes_max: 1000, frames_max: 3 };
const greeting = Buffer.alloc(64);
greeting[0] = 0xff;
greeting[9] = 0x7f;
greeting[10] = 3;
greeting[11] = 1;
greeting.write('NULL', 12, 'latin1');

function frame(body: Buffer, flags: number): Buffer {
  if (body.length < 256) return Buffer.concat([Buffer.from([flags, body.length]), body]);
  const head = Buffer.alloc(9);
  head[0] = flags | 2;
  head.writeBigUInt64BE(BigInt(body.length), 1);
  return Buffer.concat([head, body]);
}

const readyCommand = frame(Buffer.from('\x05READY'), 4);

function messageOf(frames: readonly Buffer[]): Buffer {
  return Buffer.concat(frames.map((body, index) => frame(body, index < frames.length - 1 ? 1 : 0)));
}

describe('a subscriber', () => {
  it('reads messages however they are cut, and answers each step of the greeting', () => {
    const body = fc.uint8Array({ maxLength: 600 }).map((bytes) => Buffer.from(bytes));
    const messages = fc.array(fc.array(body, { minLength: 1, maxLength: 3 }), { maxLength: 6 });
    fc.assert(
      fc.property(messages, fc.array(fc.integer({ min: 1, max: 200 }), { maxLength: 40 }), (sent, cuts) => {
        const replies: Buffer[] = [];
        const reader = new ZmtpReader(bounds, (bytes) => replies.push(bytes));
        let rest = Buffer.concat([greeting, readyCommand, ...sent.map(messageOf)]);
        const received: Buffer[][] = [];
        for (const cut of [...cuts, rest.length]) {
          received.push(...reader.push(rest.subarray(0, cut)));
          rest = rest.subarray(cut);
        }
        expect(received.map((frames) => frames.map(String))).toEqual(
          sent.map((frames) => frames.map(String)),
        );
        expect(replies.map((bytes) => bytes.toString('latin1'))).toEqual([
          expect.stringContaining('Socket-Type'),
          '\x00\x01\x01',
        ]);
      }),
    );
  });

  it.each<[string, Buffer]>([
    ['another protocol', Buffer.from('HTTP/1.1 400 Bad Request\r\n'.repeat(4))],
    ['another version', Buffer.from(greeting).fill(1, 10, 11)],
    [
      'a mechanism with keys',
      Buffer.concat([greeting.subarray(0, 12), Buffer.from('CURVE'), Buffer.alloc(47)]),
    ],
    ['a frame of 2^60 bytes', Buffer.concat([greeting, Buffer.from([2, 16, 0, 0, 0, 0, 0, 0, 0])])],
    ['flags that are none', Buffer.concat([greeting, Buffer.from([64, 0])])],
    [
      'frames without end',
      Buffer.concat([greeting, ...Array.from({ length: 9 }, () => frame(Buffer.alloc(1), 1))]),
    ],
  ])('ends with %s', (_words, bytes) => {
    const reader = new ZmtpReader(bounds, () => undefined);
    expect(() => [...reader.push(bytes)]).toThrow(/\w/);
  });
});

describe('MessagePack', () => {
  it('is read, or is an error, whatever the bytes', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
        try {
          readMessagePack(Buffer.from(bytes));
        } catch (error) {
          expect((error as Error).message).toMatch(/MessagePack/);
        }
      }),
      { numRuns: 2000 },
    );
  });

  it.each([
    ['a list of four billion', [0xdd, 0xff, 0xff, 0xff, 0xff]],
    ['a map of four billion', [0xdf, 0xff, 0xff, 0xff, 0xff, 0xa1, 0x61]],
    ['a text of four billion', [0xdb, 0xff, 0xff, 0xff, 0xff]],
    ['lists in lists', Array.from({ length: 100 }, () => 0x91)],
  ])('takes no memory for %s that is not there', (_words, bytes) => {
    expect(() => readMessagePack(Buffer.from(bytes))).toThrow(/cut off|too deep/);
  });

  it('has numbers of every width', () => {
    const read = (...bytes: number[]) => readMessagePack(Buffer.from(bytes));
    expect(read(0x7f)).toBe(127);
    expect(read(0xff)).toBe(-1);
    expect(read(0xcd, 1, 0)).toBe(256);
    expect(read(0xd1, 0xff, 0)).toBe(-256);
    expect(read(0xcf, 0, 0x20, 0, 0, 0, 0, 0, 1)).toBe(9007199254740993n);
    expect(read(0xd3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe)).toBe(-2);
    expect(read(0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0)).toBe(1.5);
  });
});

describe('events', () => {
  const sequence = Buffer.from([0, 0, 0, 0, 0, 0, 0, 7]);
  const text = (value: string): number[] => [0xa0 + value.length, ...Buffer.from(value)];
  /** `[1, [event]]` */
  const batch = (event: number[]): Buffer => Buffer.from([0x92, 1, 0x91, ...event]);

  it('are the same as a list and as a map', () => {
    const members: [string, number[]][] = [
      ['block_hashes', [0x91, 0xc4, 2, 1, 2]],
      ['parent_block_hash', [0xc0]],
      ['token_ids', [0x92, 5, 6]],
      ['block_size', [2]],
      ['lora_id', [0xc0]],
    ];
    const list = [0x96, ...text('BlockStored'), ...members.flatMap(([, value]) => value)];
    const map = [
      0x86,
      ...text('type'),
      ...text('BlockStored'),
      ...members.flatMap(([name, value]) =>
        (name.length > 15 ? [0xd9, name.length, ...Buffer.from(name)] : text(name)).concat(value),
      ),
    ];
    const [one, other] = [list, map].map((event) =>
      readEngineEvents([Buffer.alloc(0), sequence, batch(event)]),
    );
    expect(one).toEqual(other);
    expect(one).toEqual({
      sequence: 7,
      events: [
        {
          kind: 'stored',
          hashes: ['\x01\x02'],
          parent: undefined,
          tokens: [5, 6],
          block_tokens: 2,
          plain: true,
        },
      ],
    });
  });

  it.each<[string, number[]]>([
    ['of no known kind', text('Nothing')],
    ['without hashes', [0x91, ...text('BlockRemoved')]],
    ['with a hash that is none', [0x92, ...text('BlockRemoved'), 0x91, 0xc3]],
    ['of blocks of no tokens', [0x95, ...text('BlockStored'), 0x90, 0xc0, 0x90, 0]],
  ])('%s are an error', (_words, event) => {
    expect(() => readEngineEvents([Buffer.alloc(0), sequence, batch(event)])).toThrow(/\w/);
  });
});
