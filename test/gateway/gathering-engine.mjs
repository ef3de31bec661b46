// An engine whose answers show what is between it and its clients. Listens on the socket of its first argument; the last
// message says what to do: `gather N` begins a stream and ends it when N of them are open at once, `pour N` streams N MiB
// and writes to stdout how much nobody took for a while, `say TEXT` says it.
import { createServer } from 'node:http';

const gathered = [];
/** Nobody took a byte for so long: all that is between here and the client is full. */
const stalled_ms = 700;

const server = createServer(async (request, response) => {
  if (request.url === '/v1/models') {
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify({ object: 'list', data: [{ id: 'm', object: 'model' }] }));
    return;
  }
  let body = '';
  for await (const chunk of request) body += chunk;
  const [verb, argument] = JSON.parse(body).messages.at(-1).content.split(' ');
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  const event = (content) => `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content } }] })}\n\n`;
  const end = () => response.end('data: [DONE]\n\n');
  if (verb === 'say') {
    response.write(event(argument));
    end();
  } else if (verb === 'gather') {
    response.write(event('here'));
    gathered.push(() => {
      response.write(event(' together'));
      end();
    });
    if (gathered.length === Number(argument)) for (const go of gathered.splice(0)) go();
  } else {
    const line = event('x'.repeat(2 ** 16));
    for (let sent = 0; sent < Number(argument) * 16; sent++) {
      if (response.write(line)) continue;
      const stall = setTimeout(() => process.stdout.write(`stalled ${sent * line.length}\n`), stalled_ms);
      await new Promise((resolve) => response.once('drain', resolve));
      clearTimeout(stall);
    }
    end();
  }
});
server.listen({ path: process.argv[2], backlog: 2048 });
