// An OpenAI-compatible server that breaks in the ways engines do. What the client's last message says decides how:
// `count N` streams numbers; `deaf` answers nothing any more, health checks included, though the process lives;
// `stall` streams one number, and from then on nobody gets anything, with its server in order; `pause N` the same for N
// ms; `sick` makes its health check answer 500;
// `cuda`, `nccl` and `memory` write what such an engine writes, and abort. `slow N` waits N ms before each number.
// With `--child` it starts another process that computes nothing, and says so.
import { spawn } from 'node:child_process';
import { createServer } from 'node:http';

const [where, flag] = process.argv.slice(2);
if (flag === '--child') console.log(`child ${spawn('sleep', ['600'], { stdio: 'ignore' }).pid}`);
let deaf = false;
let sick = false;
let stalled = false;

const lastWords = {
  cuda:
    '/llama.cpp/ggml/src/ggml-cuda/ggml-cuda.cu:88: CUDA error\n' +
    'CUDA error: an illegal memory access was encountered\n' +
    '  current device: 0, in function ggml_backend_cuda_synchronize at ggml-cuda.cu:2780\n',
  nccl:
    '[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n' +
    'what():  [PG 0 Rank 0] Process group watchdog thread terminated with exception\n',
  memory:
    'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00 MiB. GPU 0 has a total capacity …\n',
};

createServer(async (request, response) => {
  if (deaf) return; // the connection stays open, and nothing comes
  if (request.headers.authorization !== `Bearer ${process.env.HPCSERVE_ENGINE_KEY}`) {
    response.writeHead(401).end();
    return;
  }
  if (request.url === '/v1/models') {
    response.writeHead(sick ? 500 : 200, { 'content-type': 'application/json' });
    response.end('{"object":"list","data":[]}');
    return;
  }
  let body = '';
  for await (const chunk of request) body += chunk;
  const [verb, number] = JSON.parse(body).messages.at(-1).content.split(' ');
  if (lastWords[verb]) {
    process.stderr.write(lastWords[verb], () => process.abort());
    return;
  }
  // It takes requests, and computes nothing.
  while (stalled) await new Promise((resolve) => setTimeout(resolve, 50));
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  const say = (content) =>
    response.write(`data: ${JSON.stringify({ choices: [{ index: 0, delta: { content } }] })}\n\n`);
  if (verb === 'slow') {
    response.flushHeaders();
    await new Promise((resolve) => setTimeout(resolve, Number(number)));
  }
  if (verb === 'deaf' || verb === 'stall' || verb === 'sick' || verb === 'pause') {
    say('1 ');
    deaf = verb === 'deaf';
    sick = verb === 'sick';
    stalled = verb === 'stall' || verb === 'pause';
    if (verb === 'pause')
      setTimeout(() => {
        stalled = false;
      }, Number(number));
    return;
  }
  for (let count = 1; count <= Number(verb === 'slow' ? 3 : number); count++) {
    say(`${count} `);
    if (verb === 'slow') await new Promise((resolve) => setTimeout(resolve, Number(number)));
  }
  response.end('data: [DONE]\n\n');
}).listen(where);
