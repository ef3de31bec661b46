import { expect, it } from 'vitest';
import { prefixCacheLines } from '../../../cli/format/prefix-cache.ts';
import type { DeploymentReport } from '../../../control/status.ts';
import type { PrefixCacheCounts } from '../../../spec/prefix-cache.ts';

const report = (...units: { unit: string; prefix_cache?: PrefixCacheCounts }[]): DeploymentReport =>
  ({ launches: [{ superseded: false, units }] }) as unknown as DeploymentReport;

it('says what each engine found, and nothing of one that was not asked or does not say', () => {
  const lines = prefixCacheLines(
    report(
      { unit: 'a-0', prefix_cache: { queried_tokens: 4000, found_tokens: 3001 } },
      { unit: 'a-1', prefix_cache: { queried_tokens: 0, found_tokens: 0 } },
      { unit: 'b-0' },
    ),
    Number.POSITIVE_INFINITY,
  );
  expect(lines).toEqual([
    '',
    '  prompt tokens found in the cache:',
    '    a-0: 75.0 % (3001 of 4000 since its engine started)',
  ]);
  expect(prefixCacheLines(report({ unit: 'b-0' }), 80)).toEqual([]);
});
