/** What engines are told that differs from version to version: by what the probe found. */
import { execFileSync } from 'node:child_process';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import {
  type AdapterContext,
  checkEngineOptions,
  type EngineProbe,
} from '../../../agent/adapters/adapter.ts';
import { adapterOf } from '../../../agent/adapters/index.ts';
import type { NodeDevice } from '../../../agent/devices/node-device.ts';
import { scratchFolder } from '../../mesh/support.ts';
import { unitOf } from '../support.ts';

const key = 'k'.repeat(64);
const context: AdapterContext = {
  runtime_folder: '/run/u0-0',
  port: 40123,
  key,
  engine_prefix: [],
  emulated: false,
};

function line(
  engine: 'vllm' | 'sglang',
  model: Partial<Parameters<typeof unitOf>[0]>,
  change: Partial<AdapterContext>,
  unit: Partial<Parameters<typeof unitOf>[1]> = {},
) {
  const whole = unitOf({ name: 'llama', ...model }, { engine, device_kind: 'gpu', ...unit });
  return adapterOf(engine).commandLine(whole, { ...context, ...change });
}

describe('vLLM', () => {
  test('does not log what the agent asks it, where its version can leave that out', () => {
    const options = new Set(['--disable-access-log-for-endpoints']);
    const probed = { version: '0.32.0', unix_socket: true, options };
    const { argv } = line('vllm', { engine_args: ['--seed', '1'] }, { probed });
    expect(argv.slice(-4)).toEqual(['--disable-access-log-for-endpoints', '/health,/metrics', '--seed', '1']);
  });

  test('reads answers with the parsers that its version has, and says which it lacks', () => {
    const tool_parsers = new Set(['hermes', 'qwen3_coder']);
    const probed = {
      version: '0.8.5',
      unix_socket: false,
      tool_parsers,
      reasoning_parsers: new Set(['deepseek_r1']),
      options: new Set(['--enable-reasoning']),
    };
    const parsers = { tools: ['qwen3_xml', 'qwen3_coder'], reasoning: ['qwen3'] };
    const { argv, notices } = line('vllm', {}, { probed }, { parsers });
    expect(argv.slice(-3)).toEqual(['--enable-auto-tool-choice', '--tool-call-parser', 'qwen3_coder']);
    expect(notices).toEqual(['vllm 0.8.5 has no parser qwen3: reasoning stays within the answer (llama)']);
    const thinking = { tools: [], reasoning: ['deepseek_r1'] };
    const old = line('vllm', {}, { probed }, { parsers: thinking });
    expect(old.argv.slice(-3)).toEqual(['--enable-reasoning', '--reasoning-parser', 'deepseek_r1']);
  });

  test('leaves parsers to engine_args, and refuses a parser that its version does not have', () => {
    const probed = { version: '0.32.0', unix_socket: true, tool_parsers: new Set(['hermes']) };
    const parsers = { tools: ['hermes'], reasoning: [] };
    const engine_args = ['--tool_call_parser=mine', '--enable-auto-tool-choice'];
    const { argv } = line('vllm', { engine_args }, { probed }, { parsers });
    expect(argv.slice(-2)).toEqual(engine_args);
    expect(argv.filter((word) => word === '--tool-call-parser')).toEqual([]);
    const asked = { parsers: { tools: 'hermse', reasoning: 'none' } };
    const refused = () => line('vllm', asked, { probed }, { parsers: { tools: ['hermse'], reasoning: [] } });
    expect(refused).toThrow(/vllm 0.32.0 has no parser hermse for tools/);
    const plugin = { ...asked, engine_args: ['--tool-parser-plugin', '/p.py'] };
    expect(line('vllm', plugin, { probed }).argv).toContain('hermse');
  });

  test('gets devices by number where its version takes no UUIDs, if a number means the device', () => {
    const mig = (
      visibility_token: string,
      number: Pick<NodeDevice, 'visibility_number'> = {},
    ): NodeDevice => ({
      description: { kind: 'mig', model: 'H100 MIG 1g.10gb', memory_bytes: 10, isa: [] },
      visibility_variable: 'CUDA_VISIBLE_DEVICES',
      visibility_token,
      ...number,
    });
    const probed = { version: '0.20.1', unix_socket: true, device_numbers: true as const };
    const environmentOf = (devices: NodeDevice[], probe: EngineProbe = probed) =>
      line('vllm', {}, { probed: probe, devices }).env.CUDA_VISIBLE_DEVICES;
    expect(environmentOf([mig('MIG-1', { visibility_number: '0' })])).toBe('0');
    expect(
      environmentOf([mig('MIG-1', { visibility_number: '0' })], { version: '0.33.0', unix_socket: true }),
    ).toBeUndefined();
    expect(() => environmentOf([mig('MIG-2')])).toThrow(/vllm 0.20.1 cannot be given H100 MIG 1g.10gb/);
  });
});

test('SGLang gets its key within its process where its version reads no file of options', async () => {
  const probed = { version: '0.5.2', unix_socket: false, options: new Set(['--host']) };
  const { argv, env, files } = line('sglang', {}, { probed });
  expect([argv.slice(0, 2), argv.join(' ').includes(key), files]).toEqual([['python3', '-c'], false, []]);
  await using scratch = await scratchFolder();
  await mkdir(join(scratch.path, 'sglang'));
  const program =
    'import json, os, sys\nprint(json.dumps([__name__, sys.argv[1:], "HPCSERVE_ENGINE_KEY" in os.environ]))\n';
  await writeFile(join(scratch.path, 'sglang/launch_server.py'), program);
  const environment = { ...process.env, ...env, PYTHONPATH: scratch.path };
  const printed = execFileSync(argv[0]!, argv.slice(1), { encoding: 'utf8', env: environment });
  expect(JSON.parse(printed)).toEqual(['__main__', [...argv.slice(3), '--api-key', key], false]);
});

describe('options of the installed version', () => {
  test('of an engine in Python are taken as argparse takes them', () => {
    const sources = {
      version: '0.32.0',
      unix_socket: true,
      options: new Set(['--max-model-len', '--compilation-config', '--enable-prefix-caching']),
      options_by: 'sources' as const,
    };
    const passes = (word: string, probe: EngineProbe = sources) =>
      checkEngineOptions(unitOf({ name: 'm', engine_args: [word] }, { engine: 'vllm' }), probe, [word, '-1']);
    for (const word of [
      '--max_model_len=8',
      '--max-model-l',
      '--compilation-config.level',
      '--no-enable-prefix-caching',
    ])
      passes(word);
    expect(() => passes('--max-model-length')).toThrow('m: vllm 0.32.0 has no option --max-model-length');
    passes('--max-model-length', { ...sources, options_by: 'sources and plugins' });
  });
});
