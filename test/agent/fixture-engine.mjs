// A small OpenAI-compatible server, as somebody might give it in `command`. Listens on the socket or port of its
// first argument, asks for $HPCSERVE_ENGINE_KEY, and writes what happens to it to stdout, one word a line.
// What the client's last message says decides what it does: `count N`, `hang`, `crash`, `flood N`, `half`.
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createServer } from 'node:http';

const [where, ...flags] = process.argv.slice(2);
const say = (word) => process.stdout.write(`${word}\n`);
if (flags.includes('--fail')) {
  process.stderr.write(
    `reading settings\nfatal: no such precision: fp3; the key was ${process.env.HPCSERVE_ENGINE_KEY}\n`,
  );
  process.exit(3);
}
if (flags[0] === '--needs' && !existsSync(flags[1])) {
  process.stderr.write(`fatal: ${flags[1]} is not there\n`);
  process.exit(3);
}
if (flags.includes('--child')) {
  const child = spawn('sleep', ['600'], { stdio: 'ignore' });
  say(`child ${child.pid}`);
}
if (flags.includes('--shard')) {
  // With job control a shell gives what it starts a process group of its own, in the same session.
  spawn('/bin/sh', ['-c', 'set -m; sleep 611 & wait'], { stdio: 'ignore' });
}
if (flags.includes('--daemon')) spawn('sleep', ['612'], { stdio: 'ignore', detached: true });

const server = createServer(async (request, response) => {
  if (request.headers.authorization !== `Bearer ${process.env.HPCSERVE_ENGINE_KEY}`) {
    say('refused');
    response.writeHead(401).end('{"error":{"message":"wrong key"}}');
    return;
  }
  if (request.url === '/v1/models') {
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify({ object: 'list', data: [{ id: 'fixture', object: 'model' }] }));
    return;
  }
  let body = '';
  let body_bytes = 0;
  for await (const chunk of request) {
    body_bytes += chunk.length;
    if (body_bytes < 100_000) body += chunk;
  }
  if (body_bytes >= 100_000) {
    response.end(JSON.stringify({ body_bytes }));
    return;
  }
  const [verb, count] = JSON.parse(body).messages.at(-1).content.split(' ');
  say(`asked ${verb}`);
  if (verb === 'crash') {
    process.stderr.write('out of memory, sorry\n');
    process.kill(process.pid, 'SIGKILL');
    return;
  }
  response.writeHead(200, { 'content-type': 'text/event-stream', 'x-fixture': 'yes' });
  response.on('close', () => say(response.writableFinished ? 'finished' : 'aborted'));
  const event = (text) =>
    `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: text } }] })}\n\n`;
  if (verb === 'half') {
    response.write(event('half of'));
    setTimeout(() => response.socket.destroy(), 20);
    return;
  }
  if (verb === 'flood') {
    for (let number = 0; number < Number(count); number++) {
      if (response.write(Buffer.alloc(65_536, 'x'))) continue;
      const waits = setTimeout(() => say('stalled'), 300);
      await new Promise((resolve) => response.once('drain', resolve));
      clearTimeout(waits);
    }
    say('flooded');
    response.end();
    return;
  }
  for (let number = 1; number <= (verb === 'hang' ? 1 : Number(count)); number++) {
    if (!response.write(event(`${number} `))) await new Promise((resolve) => response.once('drain', resolve));
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  if (verb !== 'hang') response.end('data: [DONE]\n\n');
});
server.listen(/^\d+$/.test(where) ? { port: Number(where), host: '127.0.0.1' } : { path: where }, () =>
  say('listening'),
);
