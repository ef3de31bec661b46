/**
 * What the installed SGLang can do. Its options are fields of `ServerArgs`, and since 0.5.2x of the classes in
 * `arg_groups/fields`.
 */
import type { EngineProbe } from './adapter.ts';
import { probeProgram, readProbe } from './source-probe.ts';

const program = probeProgram(`
folder = folder_of("sglang")
runtime = folder / "srt"
parsers = [runtime / "parser" / "reasoning_parser.py", runtime / "reasoning_parser.py"]
calls = [runtime / "function_call" / "function_call_parser.py", runtime / "function_call_parser.py"]
tell(
    version_of("sglang", folder),
    options_in([runtime / "server_args.py", *(runtime / "arg_groups").glob("*.py")])
    | options_in((runtime / "arg_groups" / "fields").glob("*.py"), all_classes=True),
    names_in(calls, "ToolCallParserEnum"),
    names_in(parsers, "DetectorMap"),
    plugins=has_plugins("sglang", "sglang.plugins", "sglang.srt.plugins"),
)
`);

/** Versions whose sources the probe was tried on (`npm run engines -- wheels`); none was run. */
export const sglang_versions = {
  run: [],
  read: ['0.4.6.post5', '0.4.10', '0.5.2', '0.5.6', '0.5.10', '0.5.23'],
} as const;

export function sglangProbeArgv(prefix: readonly string[]): string[] {
  return [...prefix, 'python3', '-c', program];
}

export function readSglangProbe(output: string): EngineProbe | undefined {
  return readProbe(output, '--served-model-name');
}
