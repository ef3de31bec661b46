/**
 * What the installed vLLM can do. Its options stand in `entrypoints/openai/cli_args.py` up to 0.2x and in
 * `entrypoints/launchers/cli_args.py` since, so every `cli_args.py` is read; its parsers in tables of
 * `vllm/tool_parsers` and `vllm/reasoning`, and before those in decorators below `entrypoints/openai`.
 */
import type { EngineProbe } from './adapter.ts';
import { probeProgram, readProbe } from './source-probe.ts';

const program = probeProgram(`
folder = folder_of("vllm", script="vllm")
entry = folder / "entrypoints"
declared = [*entry.rglob("cli_args.py"), entry / "openai" / "api_server.py", entry / "cli" / "serve.py"]
tools = [*(folder / "tool_parsers").glob("*.py"), *(entry / "openai" / "tool_parsers").glob("*.py")]
reasoning = [*(folder / "reasoning").glob("*.py"), *(entry / "openai" / "reasoning_parsers").glob("*.py")]
platforms = [folder / "platforms" / name for name in ("interface.py", "cuda.py")]
tell(
    version_of("vllm", folder),
    options_in([*declared, folder / "engine" / "arg_utils.py"]),
    names_in(tools, "PARSERS_TO_REGISTER"),
    names_in(reasoning, "PARSERS_TO_REGISTER"),
    device_numbers=takes_numbers_only(platforms, "device_id_to_physical_device_id"),
    plugins=has_plugins("vllm", "vllm.platform_plugins", "vllm.general_plugins"),
)
`);

/**
 * Versions that were run behind a real agent (`npm run engines -- vllm`), and those whose sources the probe was tried
 * on (`npm run engines -- wheels`).
 */
export const vllm_versions = {
  run: ['0.32.0'],
  read: [
    '0.8.5',
    '0.9.2',
    '0.10.2',
    '0.11.2',
    '0.12.0',
    '0.14.1',
    '0.18.1',
    '0.20.1',
    '0.24.0',
    '0.28.0',
    '0.32.0',
    '0.33.0',
  ],
} as const;

export function vllmProbeArgv(prefix: readonly string[]): string[] {
  return [...prefix, 'python3', '-c', program];
}

export function readVllmProbe(output: string): EngineProbe | undefined {
  return readProbe(output, '--served-model-name');
}
