import { expect, it } from 'vitest';
import { weightSourceLines } from '../../../cli/format/weight-sources.ts';
import type { DeploymentReport } from '../../../control/status.ts';
import type { WeightSources } from '../../../spec/weight-sources.ts';

const loaded = (more: Partial<WeightSources>): WeightSources => {
  return { reused_bytes: 0, loaded_bytes: 0, duration_ms: 0, from_nodes: {}, ...more };
};
const report = (...units: object[]): DeploymentReport =>
  ({ launches: [{ superseded: false, units }] }) as unknown as DeploymentReport;

it('says of each stage what was there, what came, and whose memory it came from', () => {
  const from_nodes = { n7: 70 * 2 ** 20, n8: 20 * 2 ** 20 };
  const stages = [
    { stage: 1, node: 'n2', loaded: loaded({ loaded_bytes: 100 * 2 ** 20, duration_ms: 4000, from_nodes }) },
    { stage: 0, node: 'n1', loaded: loaded({ reused_bytes: 2 ** 30 }) },
    { stage: 2, node: 'n3' },
  ];
  expect(weightSourceLines(report({ unit: 'cut-0', stages }), 200)).toEqual([
    '',
    '  weights as they were loaded last:',
    '    cut-0: stage 0 on n1: 1.00 GiB were there; stage 1 on n2: 100 MiB in 4 s, of them 70.0 MiB from the memory of n7 and 20.0 MiB from the memory of n8',
  ]);
});

it('says of a whole model what other nodes had to do with it, and nothing where they had nothing', () => {
  const units = [
    { unit: 'a-0', loaded: loaded({ reused_bytes: 2 ** 20, loaded_bytes: 2 ** 20, duration_ms: 1000 }) },
    {
      unit: 'a-1',
      loaded: loaded({
        reused_bytes: 2 ** 20,
        loaded_bytes: 2 ** 20,
        duration_ms: 1000,
        troubles: { n7: 'silent for 2 s' },
      }),
    },
    { unit: 'b-0' },
  ];
  expect(weightSourceLines(report(...units), 200)).toEqual([
    '',
    '  weights as they were loaded last:',
    '    a-1: 1.00 MiB were there, 1.00 MiB in 1 s, no more from n7: silent for 2 s',
  ]);
  expect(weightSourceLines(report(units[0]!, units[2]!), 80)).toEqual([]);
});
