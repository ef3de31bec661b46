import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { MessagePipe } from '../../../gateway/processes/message-pipe.ts';
import { until } from '../support.ts';

type Said = [what: string, number?: number];

let here: Socket;
let there: Socket;
let heard: (Said | string)[];
let chunks: number;
let pipe: MessagePipe<Said, Said>;

beforeEach(async () => {
  const path = join(tmpdir(), `hpcserve-pipe-${process.pid}.sock`);
  const server = createServer().listen(path);
  await once(server, 'listening');
  const accepted = once(server, 'connection');
  here = connect(path);
  [there] = (await accepted) as [Socket];
  server.close();
  heard = [];
  chunks = 0;
  there.on('data', () => chunks++);
  new MessagePipe<Said, Said>(there, {
    message: (message) => heard.push(message),
    records: (line) => heard.push(line),
    closed: () => undefined,
  });
  pipe = new MessagePipe(here, { message: () => undefined, closed: () => undefined });
});
afterEach(() => {
  here.destroy();
  there.destroy();
});

it('what is said in one turn travels together, in order, with records behind it', async () => {
  pipe.beforeSending = () => {
    pipe.beforeSending = () => undefined;
    pipe.post(['closed', 3]);
    pipe.postRecords('{"records":1}\n');
  };
  pipe.post(['admit', 1]);
  pipe.postInCompany(() => ['began', 2]);
  pipe.schedule();
  await until(() => heard.length === 4, 'all of it');
  expect(heard).toEqual([['admit', 1], ['began', 2], ['closed', 3], '{"records":1}']);
  expect(chunks).toBe(1);
});

it('what nobody waits for waits for company, says how old it is, and goes alone where none comes', async () => {
  pipe.postInCompany((age_ms) => ['began', age_ms]);
  await delay(0);
  expect(heard).toEqual([]);
  pipe.post(['admit', 1]);
  await until(() => heard.length === 2, 'both');
  expect(heard).toEqual([
    ['began', expect.any(Number)],
    ['admit', 1],
  ]);
  expect(chunks).toBe(1);

  pipe.postInCompany((age_ms) => ['began', age_ms]);
  await until(() => heard.length === 3, 'the one without company');
  const [, age_ms] = heard[2] as Said;
  expect(age_ms).toBeGreaterThanOrEqual(4);
});

it('what is said last goes out before the pipe ends', async () => {
  const closed = vi.fn();
  there.once('end', closed);
  pipe.postInCompany(() => ['continued', 1]);
  await pipe.end();
  await until(() => closed.mock.calls.length === 1, 'the end');
  expect(heard).toEqual([['continued', 1]]);
});
