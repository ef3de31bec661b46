/** Frames as they come out of a stream of bytes that is cut anywhere, and bytes that wait for their reader. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  FrameReader,
  FrameType,
  head_bytes,
  ProtocolError,
  payload_bytes_max,
  writeHead,
} from '../../../mesh/channels/frame.ts';
import { UnreadBytes } from '../../../mesh/channels/unread-bytes.ts';

interface Frame {
  kind: FrameType;
  channel: number;
  payload: Buffer;
}

function bytesOf({ kind, channel, payload }: Frame): Buffer {
  const bytes = Buffer.alloc(head_bytes + payload.length);
  writeHead(bytes, 0, kind, channel, payload.length);
  payload.copy(bytes, head_bytes);
  return bytes;
}

function read(pieces: readonly Buffer[]): Frame[] {
  const frames: Frame[] = [];
  const reader = new FrameReader((kind, channel, payload) =>
    frames.push({ kind, channel, payload: Buffer.from(payload) }),
  );
  for (const piece of pieces) reader.push(piece);
  return frames;
}

const frame = fc.record({
  kind: fc.constantFrom(...Object.values(FrameType)),
  channel: fc.integer({ min: 0, max: 0xffff_ffff }),
  payload: fc.uint8Array({ maxLength: 300 }).map((bytes) => Buffer.from(bytes)),
});

describe('frames', () => {
  it('are the same wherever their bytes are cut', () => {
    fc.assert(
      fc.property(
        fc.array(frame, { maxLength: 12 }),
        fc.array(fc.nat({ max: 4000 }), { maxLength: 12 }),
        (frames, cuts) => {
          const bytes = Buffer.concat(frames.map(bytesOf));
          const places = [0, ...cuts.filter((cut) => cut < bytes.length).sort((a, b) => a - b), bytes.length];
          const pieces = places.slice(1).map((end, index) => bytes.subarray(places[index], end));
          expect(read(pieces)).toEqual(frames);
        },
      ),
    );
  });

  it('are the same where each byte comes alone, and at each single cut', () => {
    const frames: Frame[] = [
      { kind: FrameType.open, channel: 1, payload: Buffer.alloc(0) },
      { kind: FrameType.data, channel: 1, payload: Buffer.from('some bytes') },
      { kind: FrameType.credit, channel: 0xffff_ffff, payload: Buffer.from([0, 0, 1, 0]) },
      { kind: FrameType.reset, channel: 7, payload: Buffer.from('why') },
    ];
    const bytes = Buffer.concat(frames.map(bytesOf));
    expect(read([...bytes].map((byte) => Buffer.from([byte])))).toEqual(frames);
    for (let cut = 0; cut <= bytes.length; cut++)
      expect(read([bytes.subarray(0, cut), bytes.subarray(cut)])).toEqual(frames);
  });

  it.each([
    ['a kind that there is not', Buffer.from([9, 0, 0, 0, 0, 0, 0, 1])],
    ['the kind zero', Buffer.alloc(head_bytes)],
    ['a longer payload than may be', Buffer.from([2, 0, 0x40, 1, 0, 0, 0, 1])],
    ['HTTP', Buffer.from('GET / HTTP/1.1\r\n\r\n')],
  ])('%s is an error as soon as its head is there', (_what, bytes) => {
    expect(() => read([bytes])).toThrow(ProtocolError);
  });

  it('of the longest payload pass', () => {
    const longest = { kind: FrameType.data, channel: 1, payload: Buffer.alloc(payload_bytes_max, 'x') };
    const bytes = bytesOf(longest);
    expect(read([bytes.subarray(0, 5), bytes.subarray(5)])).toEqual([longest]);
  });
});

describe('bytes that wait', () => {
  it('come out as they went in, and take no more than twice their size', () => {
    fc.assert(
      fc.property(fc.array(fc.uint8Array({ minLength: 1, maxLength: 6000 }), { maxLength: 40 }), (added) => {
        const unread = new UnreadBytes();
        for (const bytes of added) unread.add(Buffer.from(bytes));
        const all = Buffer.concat(added);
        expect(unread.length).toBe(all.length);
        const taken: Buffer[] = [];
        while (unread.length > 0) taken.push(unread.take());
        expect(Buffer.concat(taken)).toEqual(all);
        expect(taken.length).toBeLessThanOrEqual(2 * Math.ceil(all.length / 4096) + 1);
      }),
    );
  });
});
