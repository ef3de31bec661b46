/**
 * The least that a router on Node takes: its own server, undici, and nothing in between (no TLS, keys, ledger, or look
 * at what passes). argv: a port of loopback, and the origin of the worker.
 */
import { createServer } from 'node:http';
import { buffer } from 'node:stream/consumers';
import { type Dispatcher, Pool } from 'undici';

const [port, worker] = process.argv.slice(2) as [string, string];
const pool = new Pool(worker, { connections: 4096 });
createServer({ keepAliveTimeout: 600_000 }, (request, response) => {
  const { method, url, headers } = request;
  const asked = {
    method: method as Dispatcher.HttpMethod,
    path: url!,
    headers: { 'content-type': headers['content-type']!, authorization: headers.authorization! },
  };
  buffer(request)
    .then((body) =>
      pool.stream({ ...asked, body }, (answer) => {
        const { 'content-type': type = 'text/plain' } = answer.headers;
        return response.writeHead(answer.statusCode, { 'content-type': type });
      }),
    )
    .catch((error: Error) => response.destroy(error));
}).listen(Number(port), '127.0.0.1');
