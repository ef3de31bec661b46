/** Properties of the gateway's pure parts. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { bodyFor, parseRequest } from '../../../gateway/relay/request-body.ts';
import { RequestScan } from '../../../gateway/relay/request-scan.ts';
import { EventSplitter } from '../../../gateway/relay/sse-events.ts';
import { findFinishReason, findUsage, findUsageAtHead } from '../../../gateway/relay/usage.ts';
import { HttpAnswerParser } from '../../../host/http-answer-parser.ts';

/** A text cut into pieces at arbitrary places. */
const cuts = fc.array(fc.nat(40), { maxLength: 40 });
function cut(bytes: Buffer, lengths: readonly number[]): Buffer[] {
  const pieces: Buffer[] = [];
  let at = 0;
  for (const length of lengths) {
    pieces.push(bytes.subarray(at, at + length));
    at += length;
  }
  pieces.push(bytes.subarray(at));
  return pieces.filter((piece) => piece.length > 0);
}

describe('answer parser', () => {
  function parse(
    pieces: readonly Buffer[],
    ended = false,
  ): { status: number; body: string; reusable: boolean } {
    const seen = { status: 0, body: '', reusable: false };
    let whole = false;
    const parser = new HttpAnswerParser({
      onHead: ({ status }) => {
        seen.status = status;
      },
      onBody: (bytes) => {
        seen.body += bytes.toString('latin1');
      },
      onEnd: (reusable) => {
        whole = true;
        seen.reusable = reusable;
      },
    });
    parser.expect();
    for (const piece of pieces) parser.push(piece);
    if (ended) parser.end();
    if (!whole) throw new Error('not whole');
    return seen;
  }

  it('reads lengths and chunks the same however the bytes arrive', () => {
    fc.assert(
      fc.property(
        fc.array(fc.string({ minLength: 1, maxLength: 50 }), { maxLength: 8 }),
        cuts,
        fc.boolean(),
        (parts, lengths, interim) => {
          const body = Buffer.from(parts.join('')).toString('latin1');
          const first = interim ? 'HTTP/1.1 100 Continue\r\n\r\n' : '';
          const plain = `${first}HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
          expect(parse(cut(Buffer.from(plain, 'latin1'), lengths))).toEqual({
            status: 200,
            body,
            reusable: true,
          });
          const chunks = parts
            .map((part) => Buffer.from(part))
            .map((part) => `${part.length.toString(16)};x=y\r\n${part.toString('latin1')}\r\n`);
          const chunked = `HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n${chunks.join('')}0\r\nx-trailer: 1\r\n\r\n`;
          expect(parse(cut(Buffer.from(chunked, 'latin1'), lengths))).toEqual({
            status: 200,
            body,
            reusable: true,
          });
        },
      ),
    );
  });

  it.each([
    'HTTP/2 200 OK\r\n\r\n',
    'HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx',
    'HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\nx',
    'HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nx',
    'HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nx',
    'HTTP/1.1 200 OK\r\nfolded: a\r\n b\r\n\r\n',
    'HTTP/1.1 200 OK\r\nname : a\r\n\r\n',
    'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n',
    'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabc\r\n',
    'HTTP/1.1 101 Switching\r\n\r\n',
    'HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nas long as it lasts',
    'HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n\r\n',
    `HTTP/1.1 200 OK\r\nx: ${'y'.repeat(70_000)}`,
  ])('refuses what is ambiguous or no answer: %#', (text) => {
    expect(() => parse([Buffer.from(text, 'latin1')])).toThrow();
  });

  it('tells an answer that was cut off', () => {
    expect(() => parse([Buffer.from('HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc')], true)).toThrow(
      'ended before',
    );
  });
});

describe('events of a stream', () => {
  it('are found the same however the bytes arrive', () => {
    const line = fc.stringMatching(/^[a-z:{}" ]{1,20}$/);
    const event = fc.array(line, { minLength: 1, maxLength: 3 });
    fc.assert(
      fc.property(
        fc.array(event, { maxLength: 6 }),
        fc.array(fc.constantFrom('\n', '\r\n'), { minLength: 1 }),
        cuts,
        (events, newlines, lengths) => {
          let lines_ended = 0;
          const newline = (): string => newlines[lines_ended++ % newlines.length]!;
          const texts = events.map((lines) => lines.map((one) => one + newline()).join('') + newline());
          const found: string[] = [];
          let passed = '';
          const splitter = new EventSplitter(
            (bytes, start, end) => found.push(bytes.toString('latin1', start, end)),
            1000,
          );
          for (const piece of cut(Buffer.from(texts.join('')), lengths)) {
            const looked = splitter.push(piece);
            if (looked === false) throw new Error('too large');
            passed += looked.bytes.toString('latin1', 0, looked.whole);
          }
          expect(found).toEqual(texts);
          expect(passed).toBe(texts.join(''));
        },
      ),
    );
  });

  it('are put together once, in however many pieces they come', () => {
    const event = Buffer.from(`data: ${'x'.repeat(4 << 20)}\n\n`);
    const found: number[] = [];
    const splitter = new EventSplitter((_bytes, start, end) => found.push(end - start), event.length);
    for (let at = 0; at < event.length; at += 32) splitter.push(event.subarray(at, at + 32));
    expect(found).toEqual([event.length]);
  }, 20_000);

  it('are refused as soon as they are too large, and what is left is kept for the next', () => {
    const splitter = new EventSplitter(() => undefined, 10);
    expect(splitter.push(Buffer.from('a: 1\n\nb: 2'))).toMatchObject({ whole: 6 });
    expect(splitter.push(Buffer.from('3'))).toMatchObject({ whole: 0 });
    expect(splitter.rest.toString()).toBe('b: 23');
    expect(splitter.push(Buffer.from('456789'))).toBe(false);
  });
});

describe('usage and finish reason', () => {
  it('are found in any JSON, and only as keys', () => {
    fc.assert(
      fc.property(
        fc.json(),
        fc.nat(),
        fc.nat(),
        fc.constantFrom(undefined, 1, 2),
        (noise, prompt_tokens, completion_tokens, space) => {
          const answer = {
            noise: JSON.parse(noise) as unknown,
            text: '"usage":{"prompt_tokens":1} "finish_reason":"no"',
            tokens: ['usage', 'finish_reason'],
            usage: { prompt_tokens, completion_tokens },
            choices: [{ finish_reason: 'length' }],
            list: ['usage'],
          };
          const bytes = Buffer.from(JSON.stringify(answer, undefined, space));
          expect(findUsage(bytes)).toEqual({ prompt_tokens, completion_tokens });
          expect(findFinishReason(bytes)).toBe('length');
        },
      ),
    );
    expect(findUsage(Buffer.from('{"usage":null,"x":"usage"}'))).toBeUndefined();
    // What an engine gives back of the request is not what it says itself.
    const echoed = (text: string, depth?: number): unknown =>
      findUsage(Buffer.from(text), 0, text.length, depth);
    const own = '"usage":{"input_tokens":7,"output_tokens":9}';
    const made = '"metadata":{"a":[{}],"usage":{"input_tokens":0,"output_tokens":0}}';
    for (const body of [`${own},${made}`, `${made},${own}`]) {
      expect(echoed(`{"x":"}",${body},"y":[1]}`)).toEqual({ prompt_tokens: 7, completion_tokens: 9 });
      expect(echoed(`data: {"response":{${body}}}\n\n`, 2)).toEqual({
        prompt_tokens: 7,
        completion_tokens: 9,
      });
      expect(findUsageAtHead(Buffer.from(`{${body},"cut": [1, `))).toEqual({
        prompt_tokens: 7,
        completion_tokens: 9,
      });
    }
    expect(echoed(`{${made}}`)).toBeUndefined();
    expect(findFinishReason(Buffer.from('{"finish_reason":null}'))).toBeUndefined();
  });
});

describe('asking for usage and ids', () => {
  it('changes nothing else of a request', () => {
    // Of these two, what is no number of answers is refused.
    const name = fc.string().filter((one) => one !== 'n' && one !== 'best_of');
    const options = fc.option(fc.dictionary(fc.string(), fc.jsonValue(), { maxKeys: 3 }), { nil: undefined });
    fc.assert(
      fc.property(
        fc.dictionary(name, fc.jsonValue(), { maxKeys: 5 }),
        options,
        fc.constantFrom(undefined, 1),
        fc.constantFrom('native', 'vllm', undefined),
        (rest, stream_options, space, engine) => {
          const request = {
            ...rest,
            model: 'm',
            stream: true,
            ...(stream_options === undefined ? {} : { stream_options }),
          };
          const bytes = Buffer.from(JSON.stringify(request, undefined, space));
          const parsed = parseRequest(new RequestScan(bytes).finish(), 'completions');
          const asked = stream_options?.include_usage === true;
          expect(parsed.wantsUsage).toBe(asked);
          const sent = JSON.parse(Buffer.concat([...bodyFor(parsed, engine)]).toString()) as unknown;
          expect(sent).toEqual({
            ...(JSON.parse(JSON.stringify(request)) as object),
            stream_options: {
              ...(JSON.parse(JSON.stringify(stream_options ?? {})) as object),
              include_usage: true,
              ...(engine === 'vllm' ? { continuous_usage_stats: true } : {}),
            },
            return_token_ids: engine === 'vllm' ? true : undefined,
          });
        },
      ),
    );
  });

  it('asks for ids where they are given, and not where the client does or they would change what it gets', () => {
    const asks = (body: object, engine: string): unknown => {
      const bytes = Buffer.from(JSON.stringify({ model: 'm', stream: true, ...body }));
      const parsed = parseRequest(new RequestScan(bytes).finish(), 'completions');
      return JSON.parse(Buffer.concat([...bodyFor(parsed, engine)]).toString()).return_token_ids;
    };
    expect(asks({ messages: [] }, 'vllm')).toBe(true);
    expect(asks({ prompt: 'x', return_token_ids: false }, 'vllm')).toBe(true);
    expect(asks({ prompt: 'x' }, 'sglang')).toBe(true);
    expect(asks({ messages: [] }, 'sglang')).toBeUndefined();
    expect(asks({ prompt: 'x', echo: true }, 'vllm')).toBeUndefined();
    expect(asks({ prompt: 'x' }, 'llama.cpp')).toBeUndefined();
    expect(asks({ prompt: 'x', stream: false }, 'vllm')).toBeUndefined();
  });
});
