/** `main.js --probe ENGINE -- WORDS…`: what an installed engine can do, for people and for `hpcserve doctor`. */
import type { EngineReport } from '../../spec/engine-report.ts';
import { engineNames } from '../../spec/model-yaml.ts';
import type { EngineAdapter } from '../adapters/adapter.ts';
import { adapterOf } from '../adapters/index.ts';
import { sglang_versions } from '../adapters/sglang-probe.ts';
import { vllm_versions } from '../adapters/vllm-probe.ts';
import { probeEngine } from './engine-probe.ts';

const versions: Partial<Record<string, { run: readonly string[]; read: readonly string[] }>> = {
  vllm: vllm_versions,
  sglang: sglang_versions,
};

const isWrapped = (name: string): name is EngineAdapter['name'] =>
  engineNames.some((each) => each === name) && name !== 'auto' && name !== 'native';

/**
 * @param engine_prefix how it is started on this site
 * @returns undefined where the engine is not known or does not say
 * @throws Error where it cannot be asked
 */
export async function reportEngine(
  engine: string,
  engine_prefix: readonly string[],
  environment: NodeJS.ProcessEnv,
): Promise<EngineReport | undefined> {
  if (!isWrapped(engine)) return undefined;
  const probe = await probeEngine(adapterOf(engine), { engine_prefix, environment });
  if (probe === undefined) return undefined;
  const { run = [], read = [] } = versions[engine] ?? {};
  return {
    version: probe.version,
    unix_socket: probe.unix_socket,
    options: probe.options?.size,
    tool_parsers: [...(probe.tool_parsers ?? [])],
    reasoning_parsers: [...(probe.reasoning_parsers ?? [])],
    versions_run: [...run],
    versions_read: [...read],
  };
}
