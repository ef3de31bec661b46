/** What engines found of prompts in their caches, as `status` says it. */
import type { DeploymentReport, UnitReport } from '../../control/status.ts';
import { alikeLines } from './alike.ts';

/** One line a replica; nothing where no engine has looked for a prompt yet, or none says. */
export function prefixCacheLines(report: DeploymentReport, width: number): string[] {
  return alikeLines(report, width, 'prompt tokens found in the cache:', describeFound);
}

function describeFound({ prefix_cache }: UnitReport): string | undefined {
  if (prefix_cache === undefined || prefix_cache.queried_tokens === 0) return undefined;
  const { queried_tokens, found_tokens } = prefix_cache;
  const share = ((100 * found_tokens) / queried_tokens).toFixed(1);
  return `${share} % (${found_tokens} of ${queried_tokens} since its engine started)`;
}
