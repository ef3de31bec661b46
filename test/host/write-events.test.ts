/** Events on their way to real clients, who must not be able to tell which way they were written. */
import { createServer, type RequestListener, request, type Server, type ServerResponse } from 'node:http';
import { createServer as createTlsServer, request as requestTls } from 'node:https';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { writeEvents } from '../../host/write-events.ts';
import { SessionIdentity } from '../../mesh/session-identity.ts';
import { sendPastStream } from '../../native/socket-send.ts';

/** Connections of clients: a gateway sends events past the stream of a plain one. */
const ways = [
  { way: 'through the stream of their connection', isTls: false, isPast: false },
  { way: 'past it', isTls: false, isPast: true },
  { way: 'over TLS', isTls: true, isPast: false },
];

const events = Array.from({ length: 30 }, (_, at) => `data: {"token":${at},"text":"${'é'.repeat(at)}"}\n\n`);

describe.each(ways)('events to a client, $way', ({ isTls, isPast }) => {
  let server: Server;
  let port: number;
  let answer: (response: ServerResponse) => void;

  beforeAll(async () => {
    const answering: RequestListener = (_request, response) => answer(response);
    const identity = isTls ? await SessionIdentity.create() : undefined;
    server = identity
      ? createTlsServer({ cert: identity.certificate_pem, key: identity.privateKeyPem() }, answering)
      : createServer(answering);
    if (isPast) server.on('connection', sendPastStream);
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    port = (server.address() as AddressInfo).port;
  });
  afterAll(async () => {
    server.closeAllConnections();
    await new Promise<void>((resolve) => server.close(() => resolve()));
  });

  /** A client's connection, on which `text` is sent. */
  const connection = (text: string): Socket => {
    const send = (): void => void socket.write(text);
    const to = { port, host: '127.0.0.1' };
    const socket = isTls ? connectTls({ ...to, rejectUnauthorized: false }, send) : connect(to, send);
    return socket;
  };

  /** Everything that comes on a connection until it ends, for requests that are sent at once. */
  const raw = (text: string): Promise<string> =>
    new Promise((resolve, reject) => {
      let all = '';
      const socket = connection(text);
      socket.on('data', (chunk: Buffer) => {
        all += chunk.toString('latin1');
      });
      socket.on('end', () => resolve(all));
      socket.on('error', reject);
    });

  /** @param slow_ms between the pieces that it reads */
  const read = (slow_ms = 0): Promise<string> =>
    new Promise((resolve, reject) => {
      const to = { port, host: '127.0.0.1', agent: false, rejectUnauthorized: false };
      const asked = (isTls ? requestTls : request)(to, async (response) => {
        const chunks: Buffer[] = [];
        for await (const chunk of response) {
          chunks.push(chunk as Buffer);
          if (slow_ms > 0) await new Promise((done) => setTimeout(done, slow_ms));
        }
        resolve(Buffer.concat(chunks).toString());
      });
      asked.on('error', reject);
      asked.end();
    });

  /** Some in the same turn as the one before, some later. */
  const writeAll = async (response: ServerResponse, pieces: readonly string[]): Promise<void> => {
    for (const [at, piece] of pieces.entries()) {
      writeEvents(response, Buffer.from(piece), at > 0);
      if (at % 3 === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    response.end('data: [DONE]\n\n');
  };

  it('that are lent are written as they were, though the same buffer is filled again', async () => {
    const pieces = ['a', 'b'.repeat(40_000), 'c', 'd'.repeat(40_000)];
    answer = (response) => {
      const lent = Buffer.alloc(40_000);
      for (const [at, piece] of pieces.entries()) {
        lent.write(piece, 'latin1');
        writeEvents(response, lent.subarray(0, piece.length), at > 0, true);
        lent.fill('?');
      }
      response.end();
    };
    expect(await read()).toBe(pieces.join(''));
  });

  it('arrive whole and in their order', async () => {
    let byNode_bytes = 0;
    answer = async (response) => {
      const { socket } = response;
      await writeAll(response, events);
      byNode_bytes = socket!.bytesWritten;
    };
    const text = await read();
    expect(text).toBe(`${events.join('')}data: [DONE]\n\n`);
    expect(byNode_bytes > Buffer.byteLength(text)).toBe(!isPast);
  });

  it('arrive whole where they are large, and where the client is slow', async () => {
    const large = events.map((event, at) => event.repeat(at % 5 === 0 ? 800 : 20));
    let waited = 0;
    answer = async (response) => {
      for (const [at, piece] of large.entries()) {
        if (writeEvents(response, Buffer.from(piece), at > 0)) continue;
        waited++;
        await new Promise((resolve) => response.once('drain', resolve));
      }
      response.end();
    };
    const text = await read(1);
    expect(text).toBe(large.join(''));
    expect(waited).toBeGreaterThan(0);
  });

  it('are held back for a client that reads nothing', async () => {
    let written = 0;
    const held = new Promise<void>((resolve) => {
      answer = async (response) => {
        const event = Buffer.alloc(1000, 'x');
        while (writeEvents(response, event, written > 0)) {
          written += event.length;
          await new Promise((done) => setImmediate(done));
        }
        resolve();
        response.destroy();
      };
    });
    const socket = connection('GET / HTTP/1.1\r\nhost: x\r\n\r\n');
    socket.on('error', () => undefined);
    socket.pause();
    await held;
    socket.destroy();
    // What the kernel buffers, and no more.
    expect(written).toBeLessThan(32 * 1024 * 1024);
  }, 30_000);

  it('are no chunks for a client of HTTP/1.0', async () => {
    answer = (response) => void writeAll(response, events);
    const text = await raw('GET / HTTP/1.0\r\n\r\n');
    expect(Buffer.from(text.slice(text.indexOf('\r\n\r\n') + 4), 'latin1').toString()).toBe(
      `${events.join('')}data: [DONE]\n\n`,
    );
  });

  it('do not overtake the answer of a request before theirs', async () => {
    let asked = 0;
    answer = (response) => {
      const number = ++asked;
      response.setHeader('x-number', number);
      const write = (): void => void writeAll(response, [`data: ${number}\n\n`, `data: ${number}\n\n`]);
      if (number === 1) setTimeout(write, 100);
      else write();
    };
    const get = 'GET / HTTP/1.1\r\nhost: x\r\n';
    const text = await raw(`${get}\r\n${get}\r\n${get}connection: close\r\n\r\n`);
    expect(text.match(/x-number: \d|data: (\d|\[DONE\])/g)).toEqual(
      [1, 2, 3].flatMap((number) => [
        `x-number: ${number}`,
        ...[`data: ${number}`, `data: ${number}`, 'data: [DONE]'],
      ]),
    );
  });

  it('are lost with a client that has gone, and break nothing', async () => {
    const gone = new Promise<ServerResponse>((resolve) => {
      answer = (response) => {
        writeEvents(response, Buffer.from(events[0]!), false);
        response.once('close', () => resolve(response));
      };
    });
    const socket = connection('GET / HTTP/1.1\r\nhost: x\r\n\r\n');
    socket.once('data', () => socket.destroy());
    const response = await gone;
    response.on('error', () => undefined);
    for (const event of events) writeEvents(response, Buffer.from(event), true);
    answer = (next) => void writeAll(next, events);
    expect(await read()).toContain('[DONE]');
  });
});
