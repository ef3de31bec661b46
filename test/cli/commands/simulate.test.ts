/** `hpcserve simulate` as it is typed: what it prints, its JSON, and what it answers to bad input. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Configuration } from '../../../cli/config/configuration.ts';
import type { CliContext } from '../../../cli/context.ts';
import { plotCdf } from '../../../cli/format/text-plot.ts';
import { buildProgram, runCommandLine } from '../../../cli/program.ts';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-simulate-'));
  writeFileSync(
    join(folder, 'config.json'),
    JSON.stringify({
      num_hidden_layers: 16,
      hidden_size: 2048,
      num_attention_heads: 32,
      num_key_value_heads: 8,
      intermediate_size: 8192,
      vocab_size: 128256,
      tie_word_embeddings: true,
    }),
  );
  writeFileSync(join(folder, 'trace.csv'), 'arrival_s,input_tokens,output_tokens\n0,100,20\n0.5,200,30\n');
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

async function simulate(...argv: string[]): Promise<{ out: string[]; notes: string[] }> {
  const out: string[] = [];
  const notes: string[] = [];
  const environment = { HOME: folder };
  const context = {
    out: (line: string) => out.push(line),
    note: (line: string) => notes.push(line),
    json: false,
    colour: false,
    tty: { stdin: false, stdout: false, stderr: false },
    columns: 100,
    environment,
    working_folder: folder,
    configuration: new Configuration({ environment, working_folder: folder }),
  } as unknown as CliContext;
  await runCommandLine(buildProgram(context), ['simulate', ...argv]);
  return { out, notes };
}

describe('hpcserve simulate', () => {
  it('prints a table, a plot, and whose constants were used', async () => {
    const { out, notes } = await simulate('--model', 'llama-3.1-8b', '--device', 'a100', '--requests', '100');
    expect(out[0]).toBe('llama-3.1-8b (8.03 B parameters, bf16) on 1 × A100-SXM4-80GB, vllm');
    expect(out.join('\n')).toMatch(/TTFT ms +\d/);
    expect(out.join('\n')).toMatch(/100% │/);
    expect(notes.join('\n')).toMatch(/device constants: .*Vidur/);
    expect(notes.join('\n')).toMatch(/variants of this device: A100-SXM4-40GB/);
  });

  it('gives the same object for the same seed, and calls it so', async () => {
    const ask = ['--model', 'llama-3.1-8b', '--device', 'H100', '--requests', '200', '--cv', '2', '--json'];
    const [first] = (await simulate(...ask)).out;
    expect((await simulate(...ask)).out).toEqual([first]);
    expect((await simulate(...ask, '--seed', '2')).out).not.toEqual([first]);
    const { report, calibration } = JSON.parse(first!);
    expect(report).toMatchObject({ requests: 200, refused: 0, devices: 1 });
    expect(calibration.engine).toMatch(/AIConfigurator/);
  });

  it('reads a config.json and a trace', async () => {
    const { out } = await simulate('config.json', '--device', 'L40S', '--trace', 'trace.csv', '--json');
    const answer = JSON.parse(out[0]!);
    expect(answer.report.requests).toBe(2);
    expect(answer.memory.weight_bytes / 2e9).toBeCloseTo(1.24, 1);
    expect(answer.calibration.device).toMatch(/ada is not measured; blackwell-gddr/);
  });

  it('simulates a closed loop, separate prompts, and a roofline alone', async () => {
    const ask = (...more: string[]) =>
      simulate('--model', 'qwen3-8b', '--device', 'H100', '--requests', '60', '--json', ...more).then(
        ({ out }) => JSON.parse(out[0]!).report,
      );
    const loop = await ask('--concurrency', '4');
    expect(loop.requests).toBe(60);
    expect((await ask('--concurrency', '4', '--no-calibration')).tpot_ms.mean).toBeLessThan(
      loop.tpot_ms.mean,
    );
    expect((await ask('--prefill-dp', '1')).devices).toBe(2);
    expect((await ask('--no-chunked-prefill', '--max-batch', '2', '--max-batch-tokens', '256')).refused).toBe(
      0,
    );
  });

  it('takes slices of GPUs, and the config.json of a folder', async () => {
    const { out } = await simulate('.', '--device', 'A100-1g.10gb', '--requests', '20', '--json');
    const answer = JSON.parse(out[0]!);
    expect(answer.device).toBe('A100-SXM4-80GB-1g.10gb');
    expect(answer.memory.weight_bytes / 2e9).toBeCloseTo(1.24, 1);
    const whole = JSON.parse((await simulate('.', '--device', 'A100', '--requests', '20', '--json')).out[0]!);
    expect(answer.report.tpot_ms.p50).toBeGreaterThan(1.5 * whole.report.tpot_ms.p50);
  });

  it('takes a site’s own figures of devices', async () => {
    writeFileSync(join(folder, 'devices.json'), '{"A100-SXM4-80GB": {"memory_bandwidth_bytes_per_s": 1e12}}');
    writeFileSync(join(folder, 'wrong.json'), '{"A100": {"memory_bandwith": 1e12}}');
    const ask = ['--model', 'llama-3.1-8b', '--device', 'A100', '--requests', '50', '--json'];
    const tpot = ({ out }: { out: string[] }): number => JSON.parse(out[0]!).report.tpot_ms.mean;
    const slower = tpot(await simulate(...ask, '--devices', 'devices.json'));
    expect(slower).toBeGreaterThan(1.3 * tpot(await simulate(...ask)));
    for (const file of ['wrong.json', 'nowhere.json', 'trace.csv'])
      await expect(simulate(...ask, '--devices', file)).rejects.toMatchObject({ code: 'E_SIMULATION_INPUT' });
  });

  const model = ['--model', 'llama-3.1-8b'];
  it.each<[string, string[]]>([
    ['E_DEVICE_UNKNOWN', [...model, '--device', 'GH2000']],
    ['E_DEVICE_UNKNOWN', [...model, '--device', 'A100', '--interconnect', 'string']],
    ['E_MODEL_SHAPE', ['--model', 'llama-9', '--device', 'A100']],
    ['E_MODEL_SHAPE', ['trace.csv.json', '--device', 'A100']],
    ['E_USAGE', ['--device', 'A100']],
    ['E_USAGE', ['config.json', ...model, '--device', 'A100']],
    ['E_USAGE', [...model, '--device', 'A100', '--prefill-tp', '2']],
    ['E_USAGE', [...model, '--device', 'A100', '--prefill-dp', '1', '--concurrency', '2']],
    ['E_SIMULATION_INPUT', [...model, '--device', 'A100', '--rate', '-3']],
    ['E_SIMULATION_INPUT', [...model, '--device', 'A100', '--dp', '0']],
    ['E_SIMULATION_INPUT', [...model, '--device', 'A100', '--precision', 'fp7']],
    ['E_SIMULATION_INPUT', [...model, '--device', 'A100', '--tp', '5']],
    ['E_SIMULATION_INPUT', [...model, '--device', 'A100', '--trace', 'config.json']],
    ['E_SIMULATION_INPUT', [...model, '--device', 'A100', '--memory-utilization', '0']],
    ['E_SIMULATION_INPUT', [...model, '--device', 'A100', '--max-batch', '0']],
    ['E_SIMULATION_INPUT', [...model, '--device', 'A100', '--max-batch-tokens', '0']],
    ['E_SIMULATION_INPUT', [...model, '--device', 'A100', '--concurrency', '0']],
    ['E_SIMULATION_INPUT', [...model, '--device', 'A100', '--requests', '100000000']],
    ['E_SIMULATION_INPUT', [...model, '--device', 'A100', '--rate', '1e12']],
    ['E_SIMULATION_INPUT', [...model, '--device', 'A100', '--pp', '33']],
    ['E_SIMULATION_MEMORY', ['--model', 'llama-3.3-70b', '--device', 'A100']],
    ['E_SIMULATION_MEMORY', [...model, '--device', 'A100', '--input', '2000000']],
    ['E_SIMULATION_MEMORY', [...model, '--device', 'A100 1g.10gb']],
  ])('answers %s to %j', async (code, argv) => {
    await expect(simulate(...argv)).rejects.toMatchObject({ code });
  });

  it.each([
    ['--rate', 'fast'],
    ['--tp', '1.5'],
    ['--tp', '-1'],
    ['--input', '5-'],
    ['--engine', 'magic'],
  ])('is told by the parser that %s %s is wrong', async (option, value) => {
    await expect(simulate(...model, '--device', 'A100', option, value)).rejects.toMatchObject({
      code: 'commander.invalidArgument',
    });
  });
});

it('plots a distribution from its lowest to its highest value', () => {
  const sorted = Float64Array.from({ length: 100 }, (_, i) => i + 1);
  const lines = plotCdf([{ label: 'x', mark: '*', sorted }], { width: 40, height: 11, unit: 'ms' });
  expect(lines[0]).toMatch(/^100% │ +\*$/);
  expect(lines[10]).toMatch(/^ {2}0% │\*/);
  expect(lines.at(-2)).toMatch(/1\.0 .*100 ms$/);
  expect(
    plotCdf([{ label: 'x', mark: '*', sorted: new Float64Array() }], { width: 40, height: 5, unit: 's' }),
  ).toEqual([]);
});
