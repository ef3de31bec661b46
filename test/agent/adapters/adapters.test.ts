import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import {
  type AdapterContext,
  checkEngineOptions,
  metricValue,
  optionsInHelp,
} from '../../../agent/adapters/adapter.ts';
import { adapterOf } from '../../../agent/adapters/index.ts';
import { engineNames } from '../../../spec/model-yaml.ts';
import { unitOf } from '../support.ts';

const key = 'k'.repeat(64);
const context: AdapterContext = {
  runtime_folder: '/run/u0-0',
  port: 40123,
  key,
  engine_prefix: [],
  emulated: false,
};
const gpu = { model_path: '/models/llama', device_kind: 'gpu', context_tokens: 8192, threads: 8 } as const;

function line(
  engine: Parameters<typeof adapterOf>[0],
  model: Partial<Parameters<typeof unitOf>[0]> = {},
  change: Partial<AdapterContext> = {},
  unit: Partial<Parameters<typeof unitOf>[1]> = {},
) {
  return adapterOf(engine).commandLine(unitOf({ name: 'llama', ...model }, { ...gpu, engine, ...unit }), {
    ...context,
    ...change,
  });
}

describe('on several nodes', () => {
  const leader = { address: '10.1.0.1', port: 29_501 };
  const first = { rank: 0, nodes: 2, own_address: '10.1.0.1', leader };
  const second = { rank: 1, nodes: 2, own_address: '10.1.0.2', leader };
  const split = { tensor: 4, pipeline: 2, nodes: 2, device_count: 4 };
  /** What follows the name of the pipeline's degree, up to what all have in common again. */
  const between = (argv: readonly string[], from: string, to: string): readonly string[] =>
    argv.slice(argv.indexOf(from), argv.indexOf(to));

  test('vLLM: one process a node, the first of which answers', () => {
    const probed = { version: '0.18.0', unix_socket: true };
    const [one, two] = [first, second].map((place) => line('vllm', {}, { place, probed }, split));
    const shared = ['--distributed-executor-backend', 'mp', '--nnodes', '2', '--node-rank'];
    const meeting = ['--master-addr', '10.1.0.1', '--master-port', '29501'];
    const degrees = ['--tensor-parallel-size', '4', '--pipeline-parallel-size', '2'];
    const from = '--tensor-parallel-size';
    expect(between(one!.argv, '--uds', '--max-model-len')).toEqual([
      '--uds',
      '/run/u0-0/engine.sock',
      ...degrees,
      ...shared,
      '0',
      ...meeting,
    ]);
    expect(between(two!.argv, from, '--max-model-len')).toEqual([...degrees, ...shared, '1', ...meeting]);
    expect(two!.argv).toContain('--headless');
    expect(two!.argv).not.toContain('--uds');
    expect([one, two].map((each) => each!.env.VLLM_HOST_IP)).toEqual(['10.1.0.1', '10.1.0.2']);
  });

  test('vLLM before it had ranks of its own: by Ray, which each node starts', () => {
    const options = new Set(['--served-model-name']);
    const probed = { version: '0.11.0', unix_socket: true, options };
    const [one, two] = [first, second].map((place) => line('vllm', {}, { place, probed }, split));
    const meeting = ['10.1.0.1', '29501'];
    expect(one!.argv.slice(0, 2)).toEqual(['python3', '-c']);
    expect(one!.argv.slice(3, 10)).toEqual(['head', ...meeting, '10.1.0.1', '2', 'vllm', 'serve']);
    expect(between(one!.argv, '--tensor-parallel-size', '--max-model-len')).toEqual([
      ...['--tensor-parallel-size', '4', '--pipeline-parallel-size', '2'],
      ...['--distributed-executor-backend', 'ray'],
    ]);
    expect(two!.argv.slice(0, 3)).toEqual(one!.argv.slice(0, 3));
    expect(two!.argv.slice(3)).toEqual(['join', ...meeting, '10.1.0.2', '2']);
    // Whoever reaches its port needs the key, where its version asks for one.
    for (const { env } of [one!, two!])
      expect(env).toMatchObject({ RAY_AUTH_MODE: 'token', RAY_AUTH_TOKEN: key });
    expect(one!.argv.join(' ')).not.toContain(key);
    const ranks = { ...probed, options: new Set([...options, '--nnodes']) };
    expect(line('vllm', {}, { place: first, probed: ranks }, split).argv).toContain('--nnodes');
  });

  test('Ray, which takes HIP’s variable alone, is shown the devices that ROCm is', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'hpcserve-ray-'));
    const leader = createServer((socket) => socket.destroy());
    try {
      await new Promise<void>((resolve) => leader.listen(0, '127.0.0.1', resolve));
      const { port } = leader.address() as AddressInfo;
      const place = { ...second, leader: { address: '127.0.0.1', port } };
      const options = new Set(['--served-model-name']);
      const probed = { version: '0.11.0', unix_socket: true, options };
      const [program, ...args] = line('vllm', {}, { place, probed }, split).argv;
      const ray = '#!/bin/sh\necho "$1 $2 hip=$HIP_VISIBLE_DEVICES rocr=$ROCR_VISIBLE_DEVICES"\n';
      writeFileSync(join(folder, 'ray'), ray, { mode: 0o755 });
      const env = { PATH: `${folder}:${process.env.PATH}`, ROCR_VISIBLE_DEVICES: '2,3' };
      const { stdout } = await promisify(execFile)(program!, args, { env });
      expect(stdout).toBe(`start --address=127.0.0.1:${port} hip=2,3 rocr=\n`);
    } finally {
      leader.close();
      rmSync(folder, { recursive: true, force: true });
    }
  });

  test('SGLang: by rank, and an IPv6 address in brackets', () => {
    const place = { ...second, leader: { address: 'fd00::1', port: 29_501 } };
    const { argv } = line('sglang', {}, { place }, split);
    expect(between(argv, '--tp-size', '--context-length')).toEqual([
      ...['--tp-size', '4', '--pp-size', '2'],
      ...['--nnodes', '2', '--node-rank', '1', '--dist-init-addr', '[fd00::1]:29501'],
    ]);
  });

  test('any command: with its rank and the place of the first, and one key for all', () => {
    const template = ['serve', '--port={port}', '--rank={rank}/{nodes}', '{leader_host}:{leader_port}'];
    const two = line('command', { command: template }, { place: second }, split);
    expect(two.argv).toEqual(['serve', '--port=40123', '--rank=1/2', '10.1.0.1:29501']);
    expect(two.env).toEqual({ HPCSERVE_ENGINE_KEY: key });
    const alone = line('command', { command: template });
    expect(alone.argv).toEqual(['serve', '--port=40123', '--rank=0/1', '127.0.0.1:40123']);
    const blind = { command: ['serve', '--port={port}'] };
    expect(() => line('command', blind, { place: second }, split)).toThrow(/does not name \{rank\}/);
  });
});

describe('vLLM', () => {
  test('tells of its KV blocks where one process computes, whatever its data parallelism is called', () => {
    const options = new Set(['--kv-events-config']);
    const tells = (version: string, ...engine_args: string[]): boolean => {
      const probed = { version, unix_socket: true, options };
      return line('vllm', { engine_args }, { probed }).argv.includes('--kv-events-config');
    };
    expect(tells('0.21.0')).toBe(true);
    for (const words of [['-dp', '8'], ['-dp=8'], ['--data-parallel-size=8'], ['--data_parallel_size', '8']])
      expect(tells('0.21.0', ...words), words.join(' ')).toBe(false);
    // With events, those before keep all of a window, and refuse models with states.
    for (const version of ['0.20.2', '0.18.0']) expect(tells(version), version).toBe(false);
  });

  test('on a unix socket where its version has them', () => {
    const result = line(
      'vllm',
      {
        aliases: ['llama-latest'],
        precision: 'bf16',
        parallel: { tensor: 4, pipeline: 1 },
        max_sequences: 64,
        chat_template: '/templates/chat.jinja',
        engine_args: ['--gpu-memory-utilization', '0.85'],
      },
      { probed: { version: '0.18.0', unix_socket: true } },
    );
    expect(result.argv).toEqual([
      'vllm',
      'serve',
      '/models/llama',
      '--served-model-name',
      'llama',
      'llama-latest',
      '--uds',
      '/run/u0-0/engine.sock',
      '--tensor-parallel-size',
      '4',
      '--pipeline-parallel-size',
      '1',
      '--max-model-len',
      '8192',
      '--max-num-seqs',
      '64',
      '--dtype',
      'bfloat16',
      '--chat-template',
      '/templates/chat.jinja',
      '--gpu-memory-utilization',
      '0.85',
    ]);
    expect(result.env).toEqual({
      VLLM_API_KEY: key,
      VLLM_HOST_IP: '127.0.0.1',
      VLLM_NO_USAGE_STATS: '1',
      VLLM_MEDIA_URL_ALLOW_REDIRECTS: '0',
    });
    expect(result.listen).toEqual({ kind: 'socket', path: '/run/u0-0/engine.sock' });
  });

  test('on loopback otherwise; any other precision is a quantization; in a container', () => {
    const engine_prefix = ['apptainer', 'exec', '--nv', '/images/vllm.sif'];
    const result = line('vllm', { precision: 'fp8', prefill_chunk_tokens: 4096 }, { engine_prefix });
    expect(result.argv).toEqual([
      'apptainer',
      'exec',
      '--nv',
      '/images/vllm.sif',
      'vllm',
      'serve',
      '/models/llama',
      '--served-model-name',
      'llama',
      '--host',
      '127.0.0.1',
      '--port',
      '40123',
      '--tensor-parallel-size',
      '1',
      '--pipeline-parallel-size',
      '1',
      '--max-model-len',
      '8192',
      '--max-num-batched-tokens',
      '4096',
      '--quantization',
      'fp8',
    ]);
    expect(result.listen).toEqual({ kind: 'loopback', port: 40123 });
  });

  test('that may sleep has the paths for it, on a socket alone: nobody else may put it to sleep', () => {
    const model = { engine_args: ['--enable-sleep-mode'] };
    const { argv, env, sleep } = line('vllm', model, { probed: { version: '0.18.0', unix_socket: true } });
    expect(argv.at(-1)).toBe('--enable-sleep-mode');
    expect(env.VLLM_SERVER_DEV_MODE).toBe('1');
    expect(sleep).toEqual({ sleep: '/sleep?level=1', wake: '/wake_up' });
    const never = line('vllm', {}, { probed: { version: '0.18.0', unix_socket: true } });
    expect(never.env).not.toHaveProperty('VLLM_SERVER_DEV_MODE');
    expect(never.sleep).toBeUndefined();
    expect(() => line('vllm', model, { probed: { version: '0.8.0', unix_socket: false } })).toThrow(
      expect.objectContaining({ code: 'E_AGENT_ENGINE_OPTION' }),
    );
  });

  test('does not begin a pipeline on CPUs that would end at its first request', () => {
    const probed = { version: '0.32.0+cpu', unix_socket: true };
    const model = { engine_args: ['--enforce-eager'], parallel: { tensor: 1, pipeline: 2 } };
    const onCpus = { device_kind: 'cpu' } as const;
    expect(() => line('vllm', model, { probed }, onCpus)).toThrow(
      expect.objectContaining({ code: 'E_AGENT_ENGINE_OPTION' }),
    );
    const compiled = line('vllm', { ...model, engine_args: [] }, { probed }, onCpus);
    expect(compiled.argv).toContain('--pipeline-parallel-size');
    expect(line('vllm', model, { probed }).argv).toContain('--enforce-eager');
  });

  test('is told from which hosts it may fetch media, where its version can be', () => {
    const options = new Set(['--allowed-media-domains']);
    const probed = { version: '0.18.0', unix_socket: true, options };
    const domainsOf = (domains: string[]): string[] => {
      const { argv } = line('vllm', { remote_media: { domains } }, { probed });
      return argv.slice(argv.indexOf('--allowed-media-domains') + 1);
    };
    expect(domainsOf(['a.org', 'b.org'])).toEqual(['a.org', 'b.org']);
    expect(domainsOf([])).toEqual(['none.invalid']);
    const { argv } = line('vllm', {}, { probed: { version: '0.8.0', unix_socket: true } });
    expect(argv).not.toContain('--allowed-media-domains');
  });

  test('its metrics', () => {
    const text = [
      '# HELP vllm:num_requests_running Number of requests',
      'vllm:num_requests_running{engine="0",model_name="llama"} 3.0',
      'vllm:num_requests_running{engine="1",model_name="llama"} 2.0',
      'vllm:num_requests_waiting{engine="0",model_name="llama"} 7.0',
      'vllm:num_requests_waiting_by_reason{reason="capacity"} 99',
      'vllm:kv_cache_usage_perc{engine="0"} 0.25',
    ].join('\n');
    expect(adapterOf('vllm').parseMetrics!(text, unitOf({ name: 'm' }, { kv_tokens: 4000 }))).toEqual({
      running: 5,
      waiting: 7,
      kv_tokens_total: 4000,
      kv_tokens_used: 1000,
    });
  });
});

test('SGLang keeps its key out of the arguments', () => {
  const result = line('sglang', { precision: 'awq', parallel: { tensor: 2, pipeline: 1 } });
  expect(result.argv).toEqual([
    'python3',
    '-m',
    'sglang.launch_server',
    '--config',
    '/run/u0-0/sglang.yaml',
    '--model-path',
    '/models/llama',
    '--served-model-name',
    'llama',
    '--host',
    '127.0.0.1',
    '--port',
    '40123',
    '--tp-size',
    '2',
    '--pp-size',
    '1',
    '--context-length',
    '8192',
    '--quantization',
    'awq',
    '--enable-metrics',
  ]);
  expect(result.files).toEqual([{ path: '/run/u0-0/sglang.yaml', content: `api-key: "${key}"\n` }]);
  expect(result.env).toEqual({});
  const metrics = 'sglang:num_running_reqs{model_name="x"} 4\nsglang:num_queue_reqs{model_name="x"} 1.0\n';
  expect(adapterOf('sglang').parseMetrics!(metrics, unitOf({ name: 'm' }))).toEqual({
    running: 4,
    waiting: 1,
  });
});

describe('LMDeploy', () => {
  test('on a socket, for its keys would be arguments', () => {
    const result = line('lmdeploy', { precision: 'awq', parallel: { tensor: 2, pipeline: 1 } });
    expect(result.argv.slice(0, 2)).toEqual(['python3', '-c']);
    expect(result.argv[2]).toContain('name="lmdeploy"');
    expect(result.argv.slice(3)).toEqual([
      'serve',
      'api_server',
      '/models/llama',
      '--model-name',
      'llama',
      '--server-name',
      'listens-on-a-unix-socket.invalid',
      '--tp',
      '2',
      '--session-len',
      '8192',
      '--model-format',
      'awq',
    ]);
    expect(result.listen).toEqual({ kind: 'socket', path: '/run/u0-0/engine.sock' });
    expect(() => line('lmdeploy', { parallel: { tensor: 1, pipeline: 2 } })).toThrow(/parallel\.pipeline/);
    expect(() => line('lmdeploy', { precision: 'nvfp4' })).toThrow(/precision nvfp4/);
  });

  test('its metrics', () => {
    const text = [
      'lmdeploy:num_requests_running{engine="0",model_name="x"} 3.0',
      'lmdeploy:num_requests_waiting{engine="0",model_name="x"} 2.0',
      'lmdeploy:gpu_cache_usage_perc{engine="0",model_name="x"} 0.5',
      'lmdeploy:generation_tokens_total{engine="0",model_name="x"} 70.0',
    ].join('\n');
    const unit = unitOf({ name: 'm' }, { kv_tokens: 4000 });
    expect(adapterOf('lmdeploy').parseMetrics!(text, unit)).toEqual({
      running: 3,
      waiting: 2,
      kv_tokens_total: 4000,
      kv_tokens_used: 2000,
      activity: 70,
    });
  });
});

test('TensorRT-LLM on a socket, by a link of the served name', () => {
  const result = line('tensorrt-llm', { parallel: { tensor: 2, pipeline: 2 }, chat_template: '/t.jinja' });
  expect(result.argv[2]).toContain('name="trtllm-serve"');
  expect(result.argv.slice(3)).toEqual([
    '/run/u0-0/models/llama',
    '--backend',
    'pytorch',
    '--host',
    '127.0.0.1',
    '--port',
    '40123',
    '--tp_size',
    '2',
    '--pp_size',
    '2',
    '--max_seq_len',
    '8192',
    '--chat_template',
    '/t.jinja',
  ]);
  expect(result.links).toEqual([{ path: '/run/u0-0/models/llama', target: '/models/llama' }]);
  expect(result.listen).toEqual({ kind: 'socket', path: '/run/u0-0/engine.sock' });
  expect(() => line('tensorrt-llm', { precision: 'fp8' })).toThrow(/precision fp8/);
});

test('TGI with its key in the environment', () => {
  const result = line('tgi', { precision: 'awq', parallel: { tensor: 2, pipeline: 1 } });
  expect(result.argv).toEqual([
    'text-generation-launcher',
    '--model-id',
    'llama',
    '--hostname',
    '127.0.0.1',
    '--port',
    '40123',
    '--num-shard',
    '2',
    '--max-total-tokens',
    '8192',
    '--max-input-tokens',
    '8191',
    '--quantize',
    'awq',
    '--shard-uds-path',
    '/run/u0-0/shard',
    '--usage-stats',
    'off',
  ]);
  expect(result.env).toEqual({ API_KEY: key });
  expect(result.cwd).toBe('/run/u0-0/models');
  expect(line('tgi', { precision: 'bf16' }).argv).toContain('bfloat16');
  expect(() => line('tgi', { chat_template: '/t.jinja' })).toThrow(/chat_template/);
  expect(adapterOf('tgi').parseProbe!('text-generation-launcher 3.3.4\n')?.version).toBe('3.3.4');
  const metrics =
    'tgi_queue_size 2\ntgi_batch_current_size 5\ntgi_batch_inference_count{method="decode"} 9\n';
  expect(adapterOf('tgi').parseMetrics!(metrics, unitOf({ name: 'm' }))).toEqual({
    running: 5,
    waiting: 2,
    activity: 9,
  });
});

describe('llama-server', () => {
  test('on a socket, all layers on the GPU', () => {
    const result = line(
      'llama.cpp',
      { max_sequences: 4, kv_type: 'q8_0' },
      { probed: { version: 'b5000', unix_socket: true } },
      { kv_tokens: 32_768 },
    );
    expect(result.argv).toEqual([
      'llama-server',
      '--model',
      '/models/llama',
      '--alias',
      'llama',
      '--host',
      '/run/u0-0/engine.sock',
      '--ctx-size',
      '32768',
      '--parallel',
      '4',
      '--threads',
      '8',
      '--n-gpu-layers',
      '999',
      '--cache-type-k',
      'q8_0',
      '--cache-type-v',
      'q8_0',
      '--metrics',
      '--jinja',
    ]);
    expect(result.env).toEqual({ LLAMA_API_KEY: key });
  });

  test('on a CPU that stands in for a GPU, no layers go to a GPU', () => {
    const { argv } = line('llama.cpp', {}, { emulated: true });
    expect(argv[argv.indexOf('--n-gpu-layers') + 1]).toBe('0');
  });

  test('its help says whether it listens on sockets', () => {
    const { parseProbe } = adapterOf('llama.cpp');
    const help =
      '--host HOST   ip address to listen, or bind to an UNIX socket if the address ends with .sock';
    expect(parseProbe!(help)).toMatchObject({ unix_socket: true });
    expect(parseProbe!('--host HOST   ip address to listen')).toMatchObject({ unix_socket: false });
    expect(parseProbe!('command not found')).toBeUndefined();
    const whole = `${help}\n-c,    --ctx-size N   size\nversion: 5293 (1e2d3c4b)\nbuilt with cc`;
    expect(parseProbe!(whole)).toEqual({
      version: 'b5293',
      unix_socket: true,
      options: new Set(['--host', '--ctx-size']),
    });
  });

  test('parallel degrees are refused, not ignored', () => {
    expect(() => line('llama.cpp', { parallel: { tensor: 2, pipeline: 1 } })).toThrow(
      expect.objectContaining({ code: 'E_AGENT_ENGINE_OPTION' }),
    );
  });
});

test('transformers serve listens on a socket only, and calls the model by its served name', () => {
  const result = line('transformers', { name: 'org/tiny', precision: 'f32' }, {}, { device_kind: 'cpu' });
  const [python, flag, code, ...rest] = result.argv;
  expect([python, flag]).toEqual(['python3', '-c']);
  expect(code).toContain('uds=os.environ["HPCSERVE_ENGINE_SOCKET"]');
  expect(rest).toEqual([
    'serve',
    'org/tiny',
    '--host',
    'listens-on-a-unix-socket.invalid',
    '--dtype',
    'float32',
    '--device',
    'cpu',
  ]);
  expect(result.links).toEqual([{ path: '/run/u0-0/models/org/tiny', target: '/models/llama' }]);
  expect(result.cwd).toBe('/run/u0-0/models');
  expect(result.env.HPCSERVE_ENGINE_SOCKET).toBe('/run/u0-0/engine.sock');
});

describe('any command', () => {
  test('has its fields filled in once, and other braces left alone', () => {
    const command = ['my-server', '--bind={host}:{port}', '--model', '{model}', '{served_name}', '{"a":{}}'];
    const result = line(
      'command',
      { command, engine_args: ['--log', '{port}'] },
      { engine_prefix: ['{model}'] },
    );
    expect(result.argv).toEqual([
      '{model}',
      'my-server',
      '--bind=127.0.0.1:40123',
      '--model',
      '/models/llama',
      'llama',
      '{"a":{}}',
      '--log',
      '40123',
    ]);
    expect(result.env).toEqual({ HPCSERVE_ENGINE_KEY: key });
    const hostile = line(
      'command',
      { command: ['s', '{port}', '{model}'] },
      {},
      { model_path: '/m/{port}$(x)' },
    );
    expect(hostile.argv).toEqual(['s', '40123', '/m/{port}$(x)']);
  });

  test.each([[['server']], [['server', '{port}', '{socket}']], [undefined]])(
    '%j says not clearly where it listens',
    (command) => {
      expect(() => line('command', command ? { command } : {})).toThrow(
        expect.objectContaining({ code: 'E_AGENT_ENGINE_OPTION' }),
      );
    },
  );
});

describe('options that the installed version does not name', () => {
  const unit = unitOf({ name: 'm', engine_args: ['--mistaken=1'] }, { engine: 'llama.cpp' });
  const probed = {
    version: 'b9',
    unix_socket: false,
    options: optionsInHelp('-m, --model FNAME  the model\n'),
  };

  test('are refused before the start, and who named them is told', () => {
    const refused = (argv: string[]) => {
      try {
        checkEngineOptions(unit, probed, argv);
        return undefined;
      } catch (error) {
        return (error as Error).message;
      }
    };
    expect(refused(['llama-server', '--model', '/m', '-c', '5'])).toBeUndefined();
    expect(refused(['llama-server', '--model', '/m', '--mistaken=1'])).toBe(
      'm: llama.cpp b9 has no option --mistaken',
    );
    expect(refused(['llama-server', '--jinja'])).toBe('m: llama.cpp b9 has no option --jinja');
  });

  test('are passed on where it did not say what it has', () => {
    const { options: _, ...silent } = probed;
    checkEngineOptions(unit, silent, ['--anything']);
    checkEngineOptions(unit, { ...silent, options: optionsInHelp('no help here') }, ['--anything']);
  });

  test('names are read as they stand in helps', () => {
    const help =
      '  -ngl, --gpu-layers, --n-gpu-layers N\n      --sharded <SHARDED>\n --kv-split[=N] and a--b or ---x';
    expect([...optionsInHelp(help)]).toEqual(['--gpu-layers', '--n-gpu-layers', '--sharded', '--kv-split']);
  });
});

test('no adapter puts its key into the arguments', () => {
  for (const engine of engineNames.filter((name) => name !== 'auto' && name !== 'native')) {
    const probed = { version: '1', unix_socket: false };
    const { argv } = line(engine, { command: ['s', '{port}'] }, { probed });
    expect(argv.join(' '), engine).not.toContain(key);
  }
});

test.each([
  ['a 1', 1],
  ['a{x="}"} 2', 2],
  ['ab 1', undefined],
  ['a NaN', undefined],
  ['# a 1', undefined],
])('metricValue(%j, "a") is %s', (text, expected) => {
  expect(metricValue(text, 'a')).toBe(expected);
});
