/**
 * Paced streams as a process of its own, which speaks plain HTTP: the worker of a router, and the engine of a node
 * agent. argv: a port of loopback, or the path of a unix socket.
 */
import { createServer } from 'node:http';
import { PacedStreams } from './paced-upstream.ts';

const [where] = process.argv.slice(2) as [string];
const streams = new PacedStreams();
const server = createServer({ keepAliveTimeout: 600_000 }, (request, response) =>
  streams.answer(request, response),
);
if (/^\d+$/.test(where)) server.listen(Number(where), '127.0.0.1');
else server.listen(where);
