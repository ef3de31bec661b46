import { expect, test } from 'vitest';
import { type HeldPipeline, refactorStages, withHosted } from '../../../control/pipelines/held-pipelines.ts';

const halves = [
  { begin: 0, end: 9 },
  { begin: 9, end: 18 },
];
const place = (node: string) => ({ node, device: { node, device: 'gpu 0' } });
/** Of one device a node, and stages on so many of them. */
function pipelineOn(nodes: string[], stages: typeof halves): HeldPipeline {
  const devices = nodes.map((node, at) => (stages[at] ? { ...place(node), held: stages[at] } : place(node)));
  return { stages, devices } as unknown as HeldPipeline;
}

test('a stage that comes back goes to the node that had it last, though another comes first', () => {
  const hosted = new Map<string, number>();
  withHosted(pipelineOn(['a', 'c', 'b'], halves), hosted, 60_000);
  const now_ms = 120_000;
  const coarse = withHosted(pipelineOn(['a', 'b', 'c'], [{ begin: 0, end: 18 }]), hosted, now_ms);
  expect(coarse.devices.map(({ hosted_ms }) => hosted_ms)).toEqual([undefined, undefined, 60_000]);
  const again = refactorStages(coarse, halves, {
    model: 'm',
    cv: 1,
    stage_bytes: [1e9, 1e9],
    stage_s: [0.01, 0.01],
    now_ms,
  });
  expect(again?.stages).toEqual([
    { device: 'gpu 0', node: 'a', first_block: 0, blocks: 4 },
    { device: 'gpu 0', node: 'c', first_block: 4, blocks: 4 },
  ]);
  expect(again?.starts).toEqual([expect.stringMatching(/^stage 1: c had the model 60 s ago/)]);
});
