// An engine with habits of its own, to see that the gateway neither adds nor drops: members that OpenAI's API does
// not have, spacing and numbers that a JSON library would not write, headers of its own. It answers `bytes` with
// exactly what the request's `answer` says; `x-seen` holds the bytes of the request, base64. Listens on the socket of
// its first argument, and asks for $HPCSERVE_ENGINE_KEY.
import { createServer } from 'node:http';

const server = createServer(async (request, response) => {
  if (request.headers.authorization !== `Bearer ${process.env.HPCSERVE_ENGINE_KEY}`) {
    response.writeHead(401).end('{"error":{"message":"wrong key"}}');
    return;
  }
  if (request.url === '/v1/models') {
    response.setHeader('content-type', 'application/json');
    response.end('{"object":"list","data":[]}');
    return;
  }
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks);
  const { answer, status = 200, stream, pause_ms } = JSON.parse(body.toString());
  response.writeHead(status, {
    'content-type': stream ? 'text/event-stream' : 'application/json',
    'x-engine-own': 'kept',
    'x-seen': body.toString('base64'),
  });
  for (const part of [answer].flat()) {
    response.write(part);
    if (pause_ms) await new Promise((resolve) => setTimeout(resolve, pause_ms));
  }
  response.end();
});
server.listen(process.argv[2]);
