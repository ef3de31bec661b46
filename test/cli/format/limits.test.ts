import { expect, it } from 'vitest';
import { limitLines } from '../../../cli/format/limits.ts';
import type { DeploymentReport } from '../../../control/status.ts';
import type { EngineLimits } from '../../../spec/agent-state.ts';

const report = (...units: { unit: string; engine: string; limits?: EngineLimits }[]): DeploymentReport =>
  ({ launches: [{ superseded: false, units }] }) as unknown as DeploymentReport;

it('says the limits of each engine once, for all replicas that have the same', () => {
  const limits = { max_sequences: 256, context_tokens: 40_960, kv_tokens: 34_952, prefix_caching: true };
  const lines = limitLines(
    report(
      { unit: 'a-0', engine: 'vllm', limits },
      { unit: 'a-1', engine: 'vllm', limits: { ...limits } },
      { unit: 'b-0', engine: 'sglang', limits: { kv_tokens: 1000 } },
      { unit: 'c-0', engine: 'vllm' },
    ),
    Number.POSITIVE_INFINITY,
  );
  expect(lines).toEqual([
    '',
    '  limits of the engines:',
    '    a-0, a-1: vllm, up to 256 sequences at once, up to 40960 tokens each (prompt and answer), KV cache of 34952 tokens, prefix caching on',
    '    b-0: sglang, KV cache of 1000 tokens',
  ]);
});

it('says nothing as long as no engine has said any', () => {
  expect(limitLines(report({ unit: 'c-0', engine: 'vllm', limits: {} }), 80)).toEqual([]);
});
