import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { decideLost, type LossQuestion, type NodeSigns } from '../../../solver/keeping/lost-nodes.ts';

const gone: NodeSigns = { node: 'a1', agent: 'gone', scheduler: 'silent' };
const fine: NodeSigns = { node: 'a2', agent: 'speaks', scheduler: 'hears' };

const question = (change: Partial<LossQuestion> = {}): LossQuestion => ({
  now_ms: 100_000,
  launches: [{ launch_id: 'x', nodes: [fine, gone] }],
  cluster: { nodes: 8, silent: 1 },
  suspected: new Map(),
  hold_ms: 30_000,
  ...change,
});

describe('a job whose node is silent', () => {
  it('is ended once mesh and scheduler have agreed for a while', () => {
    const first = decideLost(question());
    expect(first).toEqual({ lost: [], suspected: new Map([['x', 100_000]]) });
    const early = decideLost(question({ ...first, now_ms: 129_999 }));
    expect(early.lost).toEqual([]);
    expect(decideLost(question({ ...early, now_ms: 130_000 })).lost).toEqual([
      {
        launch_id: 'x',
        nodes: ['a1'],
        because: 'node a1 is lost: Slurm gets no answer, and the agent left the mesh; so for 30 s',
      },
    ]);
  });

  it('begins anew where a sign went away in between', () => {
    const back = decideLost(
      question({ launches: [{ launch_id: 'x', nodes: [fine] }], suspected: new Map([['x', 0]]) }),
    );
    expect(back.suspected.size).toBe(0);
    expect(decideLost(question({ ...back, now_ms: 200_000 })).lost).toEqual([]);
  });

  it.each<[string, Partial<LossQuestion>]>([
    ['its agent speaks', { launches: [{ launch_id: 'x', nodes: [{ ...gone, agent: 'speaks' }] }] }],
    ['nobody knows of its agent', { launches: [{ launch_id: 'x', nodes: [{ ...gone, agent: 'unknown' }] }] }],
    [
      'Slurm hears from the node',
      { launches: [{ launch_id: 'x', nodes: [{ ...gone, scheduler: 'hears' }] }] },
    ],
    [
      'agent and node of different hosts are silent',
      {
        launches: [
          {
            launch_id: 'x',
            nodes: [
              { node: 'a1', agent: 'gone', scheduler: 'hears' },
              { node: 'a2', agent: 'speaks', scheduler: 'silent' },
            ],
          },
        ],
      },
    ],
    ['most of the cluster is silent', { cluster: { nodes: 8, silent: 5 } }],
    ['it is the only node there is', { cluster: { nodes: 1, silent: 1 } }],
  ])('stays where %s', (_, change) => {
    expect(decideLost(question({ suspected: new Map([['x', 0]]), ...change })).lost).toEqual([]);
  });

  it('nothing is ended without both signs, nor before its time', () => {
    const signs = fc.record({
      node: fc.constantFrom('a1', 'a2', 'a3'),
      agent: fc.constantFrom<NodeSigns['agent']>('speaks', 'gone', 'unknown'),
      scheduler: fc.constantFrom<NodeSigns['scheduler']>('hears', 'silent', 'unknown'),
    });
    fc.assert(
      fc.property(fc.array(signs), fc.nat(60_000), fc.nat(8), (nodes, lasted_ms, silent) => {
        const now_ms = 100_000;
        const { lost } = decideLost({
          now_ms,
          launches: [{ launch_id: 'x', nodes }],
          cluster: { nodes: 8, silent },
          suspected: new Map([['x', now_ms - lasted_ms]]),
          hold_ms: 30_000,
        });
        const both = nodes.some(({ agent, scheduler }) => agent === 'gone' && scheduler === 'silent');
        expect(lost.length > 0).toBe(both && lasted_ms >= 30_000 && silent <= 4);
      }),
    );
  });
});
