// A small server that runs on several nodes, as somebody might give it in `command`: SOCKET RANK NODES HOST PORT.
// The first part waits at HOST:PORT until all others have proved by $HPCSERVE_ENGINE_KEY that they belong to it; then it
// answers on SOCKET, with where each part runs. It goes on when one is lost, as an engine that hangs would.
import { createHmac, randomBytes } from 'node:crypto';
import { createServer as createHttpServer } from 'node:http';
import { connect, createServer } from 'node:net';
import { createInterface } from 'node:readline';

const [socket, rank, nodes, host, port] = process.argv.slice(2);
const key = process.env.HPCSERVE_ENGINE_KEY;
const proof = (text) => createHmac('sha256', key).update(text).digest('hex');
const node = process.env.SLURMD_NODENAME;
/** Errors of the connection come by it as well. */
const linesOf = (connection) => createInterface({ input: connection }).on('error', () => undefined);

if (rank === '0') {
  const parts = new Map([['0', node]]);
  const answers = createHttpServer((request, response) => {
    if (request.headers.authorization !== `Bearer ${key}`) return response.writeHead(401).end();
    response.setHeader('content-type', 'application/json');
    const content = [...parts].map((part) => part.join(' on ')).join(', ');
    const message = { role: 'assistant', content };
    const choices = [{ index: 0, message, finish_reason: 'stop' }];
    response.end(
      JSON.stringify(request.url === '/v1/models' ? { object: 'list', data: [] } : { id: 'x', choices }),
    );
  });
  createServer((connection) => {
    const nonce = randomBytes(16).toString('hex');
    connection.write(`${nonce}\n`);
    connection.on('error', () => undefined);
    linesOf(connection).once('line', (line) => {
      const [its_rank, its_node, its_proof] = line.split(' ');
      if (its_proof !== proof(nonce + its_rank)) return connection.destroy();
      parts.set(its_rank, its_node);
      if (parts.size === Number(nodes)) answers.listen(socket);
    });
  }).listen(Number(port), host);
} else {
  // The first part may not listen yet.
  const join = () => {
    const connection = connect(Number(port), host);
    connection.on('error', () => setTimeout(join, 50));
    linesOf(connection).once('line', (nonce) => connection.write(`${rank} ${node} ${proof(nonce + rank)}\n`));
  };
  join();
}
