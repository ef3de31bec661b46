/** What a wrapped engine chose where nobody told it: asked of the engine itself once it serves. */
import { closeSync, openSync, readSync } from 'node:fs';
import type { EngineLimits } from '../../spec/agent-state.ts';
import type { EngineAdapter } from '../adapters/adapter.ts';
import { fetchText } from './engine-request.ts';
import type { AgentLog } from './log.ts';
import type { Upstream } from './serving-process.ts';

/** An engine that has just begun to serve may be slow with its first answers. */
const timeout_ms = 5000;
/** Engines say what they chose as they start: later lines are of requests. */
const log_bytes_max = 2 * 1024 * 1024;

/**
 * Asks each of the adapter's paths; what one of them does not say is left out.
 * @param logFile of the engine, from its start
 */
export async function readEngineLimits(
  { limit_paths = [], parseLimits }: EngineAdapter,
  upstream: Upstream,
  logFile: string,
  log: AgentLog,
): Promise<EngineLimits> {
  if (parseLimits === undefined) return {};
  const answers = await Promise.all(
    limit_paths.map(async (path) => {
      try {
        const { status, text } = await fetchText(upstream, path, timeout_ms);
        return status === 200 ? text : '';
      } catch (error) {
        log.info({ path, reason: (error as Error).message }, 'the engine did not say what it chose');
        return '';
      }
    }),
  );
  return parseLimits(answers, beginningOf(logFile));
}

/** Empty where there is no log yet. */
function beginningOf(file: string): string {
  let descriptor: number;
  try {
    descriptor = openSync(file, 'r');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return '';
    throw error;
  }
  try {
    const bytes = Buffer.alloc(log_bytes_max);
    return bytes.toString('utf8', 0, readSync(descriptor, bytes, 0, log_bytes_max, 0));
  } finally {
    closeSync(descriptor);
  }
}
