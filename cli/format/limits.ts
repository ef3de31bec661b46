/** What engines that run chose, or were told, as `status` says it. */
import type { DeploymentReport, UnitReport } from '../../control/status.ts';
import type { EngineLimits } from '../../spec/agent-state.ts';
import { alikeLines } from './alike.ts';

/** One line for replicas whose limits are the same; nothing where no engine has said any yet. */
export function limitLines(report: DeploymentReport, width: number): string[] {
  return alikeLines(report, width, 'limits of the engines:', describeLimits);
}

function describeLimits({ engine, limits = {} }: UnitReport): string | undefined {
  const words = (Object.keys(wordings) as (keyof EngineLimits)[]).flatMap((name) => {
    const value = limits[name];
    return value === undefined ? [] : [wordings[name](Number(value))];
  });
  return words.length === 0 ? undefined : [engine, ...words].join(', ');
}

const wordings: Readonly<Record<keyof EngineLimits, (value: number) => string>> = {
  max_sequences: (value) => `up to ${value} sequences at once`,
  context_tokens: (value) => `up to ${value} tokens each (prompt and answer)`,
  kv_tokens: (value) => `KV cache of ${value} tokens`,
  prefix_caching: (value) => `prefix caching ${value === 0 ? 'off' : 'on'}`,
};
