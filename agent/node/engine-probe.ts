/** Asks an installed engine what it can do, by the commands of its adapter. */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import type { UnitSpec } from '../../spec/launch.ts';
import type { EngineAdapter, EngineProbe } from '../adapters/adapter.ts';
import type { AgentLog } from './log.ts';

/** Lower: a node whose disk is slow is taken for one without the engine; higher: one that hangs is waited for. */
const probe_timeout_ms = 60_000;
const output_bytes_max = 4 * 1024 * 1024;

interface ProbeContext {
  /** How engines are started on this site. */
  engine_prefix: readonly string[];
  environment: NodeJS.ProcessEnv;
  /** Words to put before the commands. */
  within?: readonly string[];
  signal?: AbortSignal;
}

/**
 * @returns undefined where it does not say, or its adapter has nothing to ask
 * @throws Error where a command cannot be run or fails
 */
export async function probeEngine(
  adapter: EngineAdapter,
  { engine_prefix, environment, within = [], signal }: ProbeContext,
): Promise<EngineProbe | undefined> {
  const asked = [adapter.probeArgv?.(engine_prefix), adapter.furtherProbeArgv?.(engine_prefix)];
  const commands = asked.filter((argv) => argv !== undefined);
  if (commands.length === 0 || !adapter.parseProbe) return undefined;
  const outputs = await Promise.all(
    commands.map(async (command) => {
      const [program, ...args] = [...within, ...command];
      const { stdout, stderr } = await promisify(execFile)(program!, args, {
        env: environment,
        timeout: probe_timeout_ms,
        maxBuffer: output_bytes_max,
        signal,
      });
      return `${stdout}\n${stderr}`;
    }),
  );
  return adapter.parseProbe(outputs.join('\n'));
}

/** The same; where it cannot be asked, the log says why, the answer is undefined, and the safest form is used. */
export async function tryToProbe(
  adapter: EngineAdapter,
  context: ProbeContext,
  { unit, log }: { unit: UnitSpec; log: AgentLog },
): Promise<EngineProbe | undefined> {
  try {
    return await probeEngine(adapter, context);
  } catch (error) {
    const apart = context.within !== undefined && context.within.length > 0;
    log.warn(
      { unit: unit.unit, reason: (error as Error).message.slice(0, 500) },
      `${adapter.name} did not answer what version it is${apart ? ' in a network of its own' : ''}`,
    );
    return undefined;
  }
}
