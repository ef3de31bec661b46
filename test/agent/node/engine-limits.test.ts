/** What an engine chose is asked of the engine; one that does not say it is no trouble. */
import { writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { adapterOf } from '../../../agent/adapters/index.ts';
import { readEngineLimits } from '../../../agent/node/engine-limits.ts';
import type { AgentLog } from '../../../agent/node/log.ts';
import { scratchFolder } from '../../mesh/support.ts';

const key = 'k'.repeat(64);

it('is read over its socket with its key, and from the beginning of its log', async () => {
  await using scratch = await scratchFolder();
  const path = join(scratch.path, 'engine.sock');
  const answers: Record<string, string> = {
    '/v1/models': '{"data":[{"id":"m","max_model_len":4096}]}',
    '/metrics': 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n',
  };
  const server = createServer((request, response) => {
    const text = answers[request.url!];
    const allowed = request.headers.authorization === `Bearer ${key}`;
    response.writeHead(text === undefined || !allowed ? 404 : 200).end(text);
  }).listen(path);
  const log_file = join(scratch.path, 'engine.log');
  await writeFile(log_file, "non-default args: {'max_num_seqs': 9}\n".padEnd(3_000_000, 'x'));
  const said: unknown[] = [];
  const log = { info: (...words: unknown[]) => said.push(words) } as unknown as AgentLog;
  const ask = (file: string) => readEngineLimits(adapterOf('vllm'), { kind: 'socket', path, key }, file, log);
  expect(await ask(log_file)).toEqual({ max_sequences: 9, kv_tokens: 1600, context_tokens: 4096 });
  answers['/v1/models'] = 'not json';
  delete answers['/metrics'];
  expect(await ask(join(scratch.path, 'no-such.log'))).toEqual({});
  expect(said).toEqual([]);
  server.close();
  expect(await ask(log_file)).toEqual({ max_sequences: 9 });
  expect(said).toHaveLength(2);
  expect(await readEngineLimits(adapterOf('command'), { kind: 'socket', path }, log_file, log)).toEqual({});
});
