/**
 * Of releases of vLLM and SGLang, the files that the node agent's probes look into. A wheel is a zip file of several
 * hundred MB; pip's own reader takes parts of it over HTTP, from wherever pip is configured to look.
 */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { sglang_versions } from '../../agent/adapters/sglang-probe.ts';
import { vllm_versions } from '../../agent/adapters/vllm-probe.ts';
import { packageRoot } from '../../host/package-root.ts';
import { engines_folder } from './environments.ts';
import { run } from './making.ts';

const program = join(packageRoot, 'test/engines/read-wheel.py');

interface Release {
  name: 'vllm' | 'sglang';
  versions: readonly string[];
  /** Patterns of paths in the wheel. */
  files: readonly string[];
}

const releases: readonly Release[] = [
  {
    name: 'vllm',
    versions: vllm_versions.read,
    files: [
      'vllm/version.py',
      'vllm/_version.py',
      'vllm/engine/arg_utils.py',
      'vllm/entrypoints/**/cli_args.py',
      'vllm/entrypoints/openai/api_server.py',
      'vllm/entrypoints/cli/serve.py',
      'vllm/entrypoints/openai/tool_parsers/*.py',
      'vllm/entrypoints/openai/reasoning_parsers/*.py',
      'vllm/tool_parsers/*.py',
      'vllm/reasoning/*.py',
      'vllm/platforms/interface.py',
      'vllm/platforms/cuda.py',
      '*.dist-info/METADATA',
      '*.dist-info/entry_points.txt',
    ],
  },
  {
    name: 'sglang',
    versions: sglang_versions.read,
    files: [
      'sglang/version.py',
      'sglang/_version.py',
      'sglang/srt/server_args.py',
      'sglang/srt/arg_groups/**/*.py',
      'sglang/srt/function_call/function_call_parser.py',
      'sglang/srt/function_call_parser.py',
      'sglang/srt/parser/reasoning_parser.py',
      'sglang/srt/reasoning_parser.py',
      '*.dist-info/METADATA',
      '*.dist-info/entry_points.txt',
    ],
  },
];

export async function makeWheels(say: (line: string) => void): Promise<void> {
  const python = process.env.HPCSERVE_TEST_PYTHON ?? 'python3';
  for (const { name, versions, files } of releases) {
    const folder = join(engines_folder, 'wheels', name);
    mkdirSync(folder, { recursive: true });
    say(`${name} ${versions.join(', ')}`);
    const printed = await run([python, program, folder, name, versions.join(','), ...files]);
    if (printed.trim() === '') say(`they stand in ${folder}`);
    else for (const line of printed.trim().split('\n')) say(line);
  }
}
