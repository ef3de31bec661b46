#!/usr/bin/env node
// Stands in for `vllm serve` on machines without it: answers by the rules that vLLM documents for its key and for sleep mode
// (docs/features/sleep_mode.md there), and writes what happens to it to stdout, one word a line. A model named `deep` does
// not wake; one named `mute` sleeps and answers that it failed. A chat takes VLLM_RULES_ANSWER_MS, waking VLLM_RULES_WAKE_MS;
// `sleep amid` is one that is cut short by sleep. Completions are as `vllm-protocol.mjs` has them.
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { VllmProtocol } from './vllm-protocol.mjs';

const argv = process.argv.slice(2);
const where = argv.includes('--uds')
  ? { path: argv[argv.indexOf('--uds') + 1] }
  : { port: Number(argv[argv.indexOf('--port') + 1]), host: '127.0.0.1' };
const model = argv[argv.indexOf('--served-model-name') + 1];
const say = (word) => process.stdout.write(`${word}\n`);
// Both are needed for the paths to be there.
const canSleep = process.env.VLLM_SERVER_DEV_MODE === '1' && argv.includes('--enable-sleep-mode');
let asleep = false;
let computing = 0;
let answered = 0;
// Where several are on one device: its memory, which one that is awake has to itself. `beside` is what would be out of memory.
const device = process.env.VLLM_RULES_DEVICE;
const take = () => {
  if (!device) return;
  try {
    writeFileSync(device, String(process.pid), { flag: 'wx' });
  } catch {
    const holder = Number(readFileSync(device, 'utf8'));
    if (existsSync(`/proc/${holder}`)) say('beside another');
    else writeFileSync(device, String(process.pid));
  }
};
const giveUp = () => device && rmSync(device, { force: true });
const protocol = new VllmProtocol({});

createServer(async (request, response) => {
  const { pathname, searchParams } = new URL(request.url, 'http://vllm');
  const answer = (status, value) => response.writeHead(status).end(JSON.stringify(value));
  let body = '';
  for await (const chunk of request) body += chunk;
  const asked = `${request.method} ${pathname}`;
  // The key guards what is below /v1, and nothing else.
  if (pathname.startsWith('/v1') && request.headers.authorization !== `Bearer ${process.env.VLLM_API_KEY}`)
    return answer(401, { error: 'Unauthorized' });
  if (asked === 'GET /health') return answer(200, {});
  if (asked === 'GET /metrics')
    return response.end(`vllm:num_requests_running ${computing}\nvllm:generation_tokens_total ${answered}\n`);
  if (asked === 'POST /invocations') return answer(200, { choices: [{ text: 'to anybody' }] });
  if (canSleep && asked === 'GET /is_sleeping') return answer(200, { is_sleeping: asleep });
  if (canSleep && asked === 'POST /sleep') {
    if (computing > 0) say('sleep amid');
    say(`sleep ${searchParams.get('level') ?? 1}`);
    asleep = true;
    giveUp();
    if (model === 'mute') return answer(500, { error: 'timed out' });
    return response.writeHead(200).end();
  }
  if (canSleep && asked === 'POST /wake_up') {
    say('wake');
    if (model === 'deep') return answer(500, { error: 'CUDA out of memory' });
    await new Promise((resolve) => setTimeout(resolve, Number(process.env.VLLM_RULES_WAKE_MS ?? 50)));
    if (asleep) take();
    asleep = false;
    return response.writeHead(200).end();
  }
  if (asked === 'POST /detokenize' || (asked === 'POST /v1/completions' && JSON.parse(body).stream))
    return protocol.answer({ path: pathname, body }, response);
  if (asked !== 'POST /v1/chat/completions') return answer(404, { detail: 'Not Found' });
  say(asleep ? 'asked asleep' : 'asked');
  if (asleep) return answer(503, { error: { message: 'the model is sleeping' } });
  const { cache_salt } = JSON.parse(body);
  computing++;
  await new Promise((resolve) => setTimeout(resolve, Number(process.env.VLLM_RULES_ANSWER_MS ?? 0)));
  computing--;
  answered++;
  answer(200, { choices: [{ index: 0, message: { role: 'assistant', content: 'awake' } }], cache_salt });
}).listen(where, () => {
  say(`pid ${process.pid}`);
  take();
  say('listening');
});
