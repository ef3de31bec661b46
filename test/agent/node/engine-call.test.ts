/** The node agent's client of engines, against whatever a server behind a socket may send. */
import { createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type EngineBody, EngineCall, type EngineReceiver } from '../../../agent/node/engine-call.ts';
import type { Upstream } from '../../../agent/node/serving-process.ts';
import { eventually, scratchFolder } from '../../mesh/support.ts';

let upstream: Upstream;
let close: () => Promise<void>;
let serve: (socket: Socket) => void;

beforeAll(async () => {
  const scratch = await scratchFolder();
  const path = join(scratch.path, 'engine.sock');
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    socket.on('error', () => undefined);
    serve(socket);
  });
  await new Promise<void>((resolve) => server.listen(path, resolve));
  upstream = { kind: 'socket', path };
  close = async () => {
    server.close();
    await scratch[Symbol.asyncDispose]();
  };
});
afterAll(() => close());

interface Seen {
  status?: number;
  fields: string[];
  body: string;
  trailers?: readonly string[];
  error?: Error;
}

/** All of the answer to one request. @param onBody sees each part as it comes */
function ask(
  { method = 'GET', body = { kind: 'none' } }: { method?: string; body?: EngineBody } = {},
  onBody?: (call: EngineCall, bytes: Buffer) => void,
): Promise<Seen> {
  return new Promise((resolve) => {
    const seen: Seen = { fields: [], body: '' };
    const parts: Buffer[] = [];
    const done = (): void => {
      seen.body = Buffer.concat(parts).toString('latin1');
      resolve(seen);
    };
    const receiver: EngineReceiver = {
      onConnect: () => undefined,
      onHead: ({ status, fields }) => Object.assign(seen, { status, fields }),
      onBody: (bytes) => {
        parts.push(Buffer.from(bytes));
        onBody?.(call, bytes);
      },
      onEnd: (trailers) => {
        seen.trailers = trailers;
        done();
      },
      onError: (error) => {
        seen.error = error;
        done();
      },
    };
    const call = new EngineCall(
      upstream,
      { method, path: '/v1/x', fields: [['host', 'localhost']], body },
      receiver,
    );
  });
}

/** Sends it in pieces of these lengths, each in a turn of its own, and the rest at once. */
async function sendInPieces(socket: Socket, text: string, lengths: readonly number[]): Promise<void> {
  const bytes = Buffer.from(text, 'latin1');
  let at = 0;
  for (const length of lengths) {
    if (at >= bytes.length) break;
    await new Promise((resolve) => socket.write(bytes.subarray(at, at + length), resolve));
    await new Promise((resolve) => setImmediate(resolve));
    at += length;
  }
  if (at < bytes.length) socket.write(bytes.subarray(at));
}

const chunked = 'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n';
const chunkOf = (text: string): string => `${text.length.toString(16)}\r\n${text}\r\n`;

describe('an answer', () => {
  test('in chunks with a trailer is the same wherever it is cut', async () => {
    const events = Array.from({ length: 5 }, (_, at) => `data: {"token":${at}}\n\n`);
    const text = `${chunked}${events.map(chunkOf).join('')}0\r\nx-timings: a\r\n\r\n`;
    await fc.assert(
      fc.asyncProperty(fc.array(fc.integer({ min: 1, max: 40 }), { maxLength: 12 }), async (lengths) => {
        serve = (socket) => void sendInPieces(socket, text, lengths);
        const seen = await ask();
        expect(seen.error).toBeUndefined();
        expect(seen.status).toBe(200);
        expect(seen.body).toBe(events.join(''));
        expect(seen.trailers).toEqual(['x-timings', 'a']);
      }),
      { numRuns: 60 },
    );
  });

  test('to HEAD has no body, whatever length it names', async () => {
    serve = (socket) => socket.write('HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n');
    const seen = await ask({ method: 'HEAD' });
    expect(seen).toMatchObject({ status: 200, body: '' });
    expect(seen.fields).toEqual(['content-length', '500']);
    expect(seen.error).toBeUndefined();
  });

  test('without a length ends with its connection', async () => {
    serve = (socket) => socket.end('HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nall of it');
    const seen = await ask();
    expect(seen.error).toBeUndefined();
    expect(seen).toMatchObject({ status: 200, body: 'all of it' });
  });

  test('comes on a connection of its own, which nothing of the next can be on', async () => {
    let connections = 0;
    serve = (socket) => {
      connections++;
      const whole = 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n';
      socket.write(`${whole}a${connections}${whole}no`);
    };
    expect((await ask()).body).toBe('a1');
    expect((await ask()).body).toBe('a2');
    expect(connections).toBe(2);
  });

  test.each([
    ['nothing at all', ''],
    ['half a head', 'HTTP/1.1 200 O'],
    ['half a body', 'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf'],
    ['half a chunk', `${chunked}20\r\ndata: `],
    ['chunks without an end', `${chunked}${chunkOf('data: {}\n\n')}`],
    ['half a trailer', `${chunked}0\r\nx-tim`],
  ])('that breaks off is no answer: %s', async (_what, text) => {
    serve = (socket) => socket.end(text);
    const seen = await ask();
    expect(seen.error).toBeInstanceOf(Error);
    expect(seen.trailers).toBeUndefined();
  });

  test.each([
    ['no HTTP', 'SSH-2.0-OpenSSH\r\n\r\n'],
    ['another protocol', 'HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n'],
    ['a head of 70 KiB', `HTTP/1.1 200 OK\r\n${'a: b\r\n'.repeat(12_000)}\r\n`],
    ['a chunk whose size is none', `${chunked}zz\r\n`],
    ['trailers of 20 KiB', `${chunked}0\r\n${'a: b\r\n'.repeat(3500)}\r\n`],
  ])('that is none ends its connection: %s', async (_what, text) => {
    const closed = new Promise<void>((resolve) => {
      serve = (socket) => {
        socket.on('close', () => resolve());
        socket.on('end', () => socket.destroy());
        socket.resume();
        socket.write(text);
      };
    });
    const seen = await ask();
    expect(seen.error).toBeInstanceOf(Error);
    await closed;
  });

  test('with an event of 10 MiB is read no faster than it is taken', async () => {
    const event = `data: ${'x'.repeat(10 * 2 ** 20)}\n\n`;
    let engine: Socket | undefined;
    serve = (socket) => {
      engine = socket;
      socket.write(`${chunked}${chunkOf(event)}0\r\n\r\n`, 'latin1');
    };
    let parts = 0;
    let held: EngineCall | undefined;
    const seen = ask({}, (call) => {
      if (parts++ > 0) return;
      call.pause();
      held = call;
    });
    await eventually(() => held !== undefined, 'the first part');
    const unsent_bytes = (): number => engine!.writableLength;
    const before = parts;
    for (let turn = 0; turn < 50; turn++) await new Promise((resolve) => setImmediate(resolve));
    expect(parts).toBe(before);
    expect(unsent_bytes()).toBeGreaterThan(0);
    held!.resume();
    expect((await seen).body).toBe(event);
    expect(parts).toBeGreaterThan(100);
  });
});

describe('a request', () => {
  /** What the engine reads, up to `end`. */
  const heard = (end: string): Promise<string> =>
    new Promise((resolve) => {
      serve = (socket) => {
        let text = '';
        socket.on('data', (bytes: Buffer) => {
          text += bytes.toString('latin1');
          if (!text.endsWith(end)) return;
          socket.write('HTTP/1.1 204 No Content\r\n\r\n');
          resolve(text);
        });
      };
    });

  test('with a body that is there says its length', async () => {
    const text = heard('\xc3\xa9"}');
    await ask({ method: 'POST', body: { kind: 'whole', bytes: Buffer.from('{"a":"é"}') } });
    expect(await text).toBe(
      'POST /v1/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\nconnection: keep-alive\r\n\r\n{"a":"\xc3\xa9"}',
    );
  });

  test('with a body that comes in pieces passes on what its sender said of it', async () => {
    const pieces = ['one', 'two', ''];
    let text = heard('onetwo');
    await ask({ method: 'POST', body: { kind: 'length', bytes: 6, from: Readable.from(pieces) } });
    expect(await text).toContain('content-length: 6\r\n');
    text = heard('0\r\n\r\n');
    const from = Readable.from(pieces.map((piece) => Buffer.from(piece)));
    await ask({ method: 'POST', body: { kind: 'chunks', from } });
    expect(await text).toMatch(/transfer-encoding: chunked\r\n.*\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n$/s);
  });

  test('without a body has none', async () => {
    let text = heard('\r\n\r\n');
    await ask();
    expect(await text).not.toContain('content-length');
    text = heard('\r\n\r\n');
    await ask({ method: 'POST' });
    expect(await text).toContain('content-length: 0\r\n');
  });

  test('to an engine that is not there fails', async () => {
    const nowhere: Upstream = { kind: 'socket', path: '/nowhere/engine.sock' };
    const error = await new Promise<Error>((resolve) => {
      const receiver: EngineReceiver = {
        onConnect: () => undefined,
        onHead: () => undefined,
        onBody: () => undefined,
        onEnd: () => undefined,
        onError: resolve,
      };
      new EngineCall(nowhere, { method: 'GET', path: '/', fields: [], body: { kind: 'none' } }, receiver);
    });
    expect(error.message).toContain('ENOENT');
  });

  test('that is given up is heard of no more, and the engine sees it', async () => {
    let gone: (() => void) | undefined;
    const seesIt = new Promise<void>((resolve) => {
      gone = resolve;
    });
    serve = (socket) => {
      socket.resume();
      socket.on('close', () => gone!());
      socket.on('end', () => socket.destroy());
      socket.write(`${chunked}${chunkOf('data: 1\n\n').repeat(3)}`);
    };
    let parts = 0;
    const never = ask({}, (call) => {
      parts++;
      call.destroy();
    });
    await seesIt;
    expect(parts).toBe(1);
    expect(await Promise.race([never, Promise.resolve('nothing')])).toBe('nothing');
  });
});

test('what a receiver throws is a defect of ours, and is not said of the engine', async () => {
  serve = (socket) => {
    socket.once('data', () => socket.end('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok'));
  };
  const thrown: unknown[] = [];
  const listeners = process.listeners('uncaughtException');
  process.removeAllListeners('uncaughtException');
  process.once('uncaughtException', (error) => thrown.push(error));
  try {
    const defect = new Error('a defect');
    let said: Error | undefined;
    new EngineCall(
      upstream,
      { method: 'GET', path: '/v1/x', fields: [], body: { kind: 'none' } },
      {
        onConnect: () => undefined,
        onHead: () => undefined,
        onBody: () => undefined,
        onEnd: () => {
          throw defect;
        },
        onError: (error) => {
          said = error;
        },
      },
    );
    await eventually(() => thrown.length > 0, 'the defect');
    expect([thrown, said]).toEqual([[defect], undefined]);
  } finally {
    for (const listener of listeners) process.on('uncaughtException', listener);
  }
});
