/** The gateway's HTTP client against whatever bytes a broken or hostile session may send. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { HttpAnswerParser } from '../../host/http-answer-parser.ts';

interface Seen {
  heads: { status: number; fields: string[] }[];
  body: string;
  ends: boolean[];
  error?: Error;
}

/** What the parser tells of bytes that arrive in pieces of the given lengths, for one request. */
function parse(text: string, lengths: readonly number[] = []): Seen {
  const seen: Seen = { heads: [], body: '', ends: [] };
  const parser = new HttpAnswerParser({
    onHead: ({ status, fields }) => seen.heads.push({ status, fields: [...fields] }),
    onBody: (bytes) => {
      seen.body += bytes.toString('latin1');
    },
    onEnd: (reusable) => seen.ends.push(reusable),
  });
  parser.expect();
  const bytes = Buffer.from(text, 'latin1');
  try {
    let at = 0;
    for (const length of [...lengths, bytes.length]) {
      if (at >= bytes.length) break;
      parser.push(bytes.subarray(at, at + Math.max(1, length)));
      at += Math.max(1, length);
    }
  } catch (error) {
    seen.error = error as Error;
  }
  return seen;
}

const ok = 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}';

describe('what a session may not send', () => {
  test.each([
    ['a second answer right behind the first', `${ok}${ok}`],
    ['a second answer behind chunks', `HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n${ok}`],
    ['a body behind 204', 'HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n'],
  ])('%s: it never passes for the answer to the next request', (_what, text) => {
    const seen = parse(text);
    expect(seen.heads).toHaveLength(1);
    expect(seen.ends).toEqual([false]);
    expect(seen.error).toBeInstanceOf(Error);
  });

  test.each([
    ['a status in other notations', 'HTTP/1.1 2e2 OK\r\ncontent-length: 0\r\n\r\n'],
    ['a status of four digits', 'HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n'],
    ['another version', 'HTTP/1.2 200 OK\r\ncontent-length: 0\r\n\r\n'],
    ['an end of line within a value', 'HTTP/1.1 200 OK\r\nx: a\nset-cookie: b\r\ncontent-length: 0\r\n\r\n'],
    ['a carriage return within a value', 'HTTP/1.1 200 OK\r\nx: a\rb\r\ncontent-length: 0\r\n\r\n'],
    ['a zero byte', 'HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 0\r\n\r\n'],
    ['a name with a blank', 'HTTP/1.1 200 OK\r\ncontent length: 5\r\ncontent-length: 0\r\n\r\n'],
    ['a name with a control character', 'HTTP/1.1 200 OK\r\ntransfer-encoding\x0b: chunked\r\n\r\n'],
    ['a length with another kind of blank', 'HTTP/1.1 200 OK\r\ncontent-length: \xa05\r\n\r\n12345'],
    ['a length with a sign', 'HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\n12345'],
    ['a list of lengths', 'HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\n12345'],
    ['chunks twice', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n'],
    ['two codings', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, chunked\r\n\r\n'],
    ['chunks in HTTP/1.0', 'HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n'],
    ['chunks with 304', 'HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked\r\n\r\n'],
    ['an interim answer with a body', 'HTTP/1.1 103 Early\r\ncontent-length: 5\r\n\r\n12345'],
    ['interim answers without end', 'HTTP/1.1 100 Continue\r\n\r\n'.repeat(100)],
    ['no length at all', 'HTTP/1.1 200 OK\r\n\r\n{"half":'],
    ['lines that end by LF', 'HTTP/1.1 200 OK\ncontent-length: 0\n\n\r\n\r\n'],
    ['a chunk size with a sign', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n+1\r\na\r\n'],
    ['a chunk size with a prefix', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0x1\r\na\r\n'],
    ['a chunk size without CR', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\na\r\n'],
    ['a chunk extension with CR', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;a\rb\r\na\r\n'],
    ['an enormous chunk', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffff\r\n'],
    [
      'a malformed trailer',
      'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nno field at all\r\n\r\n',
    ],
    [
      'trailers without end',
      `HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n${'a: b\r\n'.repeat(10_000)}\r\n`,
    ],
    [
      'a head that is too large, at once',
      `HTTP/1.1 200 OK\r\n${'a: b\r\n'.repeat(20_000)}content-length: 0\r\n\r\n`,
    ],
  ])('%s', (_what, text) => {
    for (const lengths of [[], Array(300).fill(1), Array(100).fill(7)]) {
      const seen = parse(text, lengths);
      expect(seen.error, seen.body).toBeInstanceOf(Error);
      expect(seen.ends).toEqual([]);
    }
  });

  test('a hostile line costs no more than an honest one', () => {
    // What it computes, however long others keep it waiting.
    const before = process.cpuUsage();
    parse(`HTTP/1.1 200 OK\r\nx: ${' '.repeat(60_000)}\x01\r\n\r\n`);
    parse(`HTTP/1.1 200 ${' a'.repeat(30_000)}\x01\r\n\r\n`);
    parse(`HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1${' '.repeat(4000)}\x01\r\n`);
    const { user, system } = process.cpuUsage(before);
    expect((user + system) / 1000).toBeLessThan(500);
  });
});

describe('any bytes', () => {
  const noise = fc.string({
    unit: fc.constantFrom(
      ...['HTTP/1.1 200 OK', 'HTTP/1.1 100 C', '\r\n', '\r\n\r\n', '\n', '\r', ' ', ':', ';', '0', '1', 'a'],
      ...['content-length: 3', 'transfer-encoding: chunked', 'connection: close', 'x', '\0', '\xa0', '\t'],
    ),
    maxLength: 40,
  });
  const cuts = fc.array(fc.nat(20), { maxLength: 60 });

  test('end in one answer or an error, the same however they arrive; at most one head and one end', () => {
    fc.assert(
      fc.property(noise, fc.boolean(), cuts, (text, begun, lengths) => {
        const bytes = begun ? `HTTP/1.1 200 OK\r\n${text}` : text;
        const whole = parse(bytes);
        const pieces = parse(bytes, lengths);
        for (const seen of [whole, pieces]) {
          expect(seen.heads.length).toBeLessThanOrEqual(1);
          expect(seen.ends.length).toBeLessThanOrEqual(1);
          for (const { status, fields } of seen.heads) {
            expect(status).toBeGreaterThanOrEqual(200);
            for (const part of fields) expect(part).not.toMatch(/[\r\n\0]/);
          }
        }
        expect(pieces.heads).toEqual(whole.heads);
        expect(pieces.ends.length).toBe(whole.ends.length);
        expect(pieces.error === undefined).toBe(whole.error === undefined);
        if (!whole.error) expect(pieces.body).toBe(whole.body);
      }),
      { numRuns: 3000 },
    );
  });
});
