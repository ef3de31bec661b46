#!/usr/bin/env node
// Starts as vLLM 0.32 does, in its words: `serve MODEL … --uds SOCKET`. Reads the file MODEL in two halves, and takes each
// step once a file of its number lies in the folder of MODEL.
import { existsSync, openSync, readSync, statSync } from 'node:fs';
import { createServer } from 'node:http';
import { dirname, join } from 'node:path';

const argv = process.argv.slice(2);
const model = argv[1];
const size = statSync(model).size;
const file = openSync(model, 'r');
const say = (line) => process.stdout.write(`(EngineCore pid=${process.pid}) ${line}\n`);
const read = (from, bytes) => readSync(file, Buffer.alloc(bytes), 0, bytes, from);
const steps = [
  () => {
    say(`INFO 11-22 18:00:05 [model_runner.py:4801] Starting to load model ${model}...`);
    // Not at once: what was read before is none of the weights.
    setTimeout(() => read(0, size / 2), 1500);
  },
  () => read(size / 2, size / 2),
  () => say("INFO 11-22 18:00:09 [backends.py:1] Using cache directory: /c for vLLM's torch.compile"),
  () => say('INFO 11-22 18:00:12 [kv_cache_utils.py:1] CPU KV cache size: 4,096 tokens'),
  () => {
    process.stdout.write('INFO 11-22 18:00:13 [api_server.py:1] Starting vLLM server on unix:x\n');
  },
  () => listen(),
];

function listen() {
  createServer((_request, response) => response.end('{}')).listen(argv[argv.indexOf('--uds') + 1]);
}

let taken = 0;
setInterval(() => {
  while (taken < steps.length && existsSync(join(dirname(model), String(taken)))) steps[taken++]();
}, 20);
