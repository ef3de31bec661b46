import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { decideLost, type LossQuestion, type NodeSigns } from '../../../solver/keeping/lost-nodes.ts';

const gone: NodeSigns = { node: 'a1', agent: 'gone', scheduler: 'silent' };
const fine: NodeSigns = { node: 'a2', agent: 'speaks', scheduler: 'hears' };

/** Both signs for 70 s: longer than a node that is lost is waited for, and shorter than an agent that alone is gone. */
const since = { lost_since_ms: 30_000, gone_since_ms: 30_000 };

const ofX = (...nodes: NodeSigns[]): Partial<LossQuestion> => ({
  launches: [{ launch_id: 'x', nodes, runs: true }],
});

const question = (change: Partial<LossQuestion> = {}): LossQuestion => ({
  now_ms: 100_000,
  launches: [{ launch_id: 'x', nodes: [fine, gone], runs: true }],
  cluster: { nodes: 8, silent: 1 },
  suspected: new Map(),
  hold_ms: 30_000,
  ...change,
});

describe('a job whose node is silent', () => {
  it('is ended once mesh and scheduler have agreed for a while', () => {
    const first = decideLost(question());
    expect(first).toEqual({
      lost: [],
      suspected: new Map([['x', { lost_since_ms: 100_000, gone_since_ms: 100_000 }]]),
    });
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
      question({
        launches: [{ launch_id: 'x', nodes: [fine], runs: true }],
        suspected: new Map([['x', since]]),
      }),
    );
    expect(back.suspected.size).toBe(0);
    expect(decideLost(question({ ...back, now_ms: 200_000 })).lost).toEqual([]);
  });

  it.each<[string, Partial<LossQuestion>]>([
    ['its agent speaks', ofX({ ...gone, agent: 'speaks' })],
    ['nobody knows of its agent', ofX({ ...gone, agent: 'unknown' })],
    ['Slurm hears from the node', ofX({ ...gone, scheduler: 'hears' })],
    [
      'agent and node of different hosts are silent',
      ofX({ ...gone, scheduler: 'hears' }, { ...fine, scheduler: 'silent' }),
    ],
    ['most of the cluster is silent', { cluster: { nodes: 8, silent: 5 } }],
    ['it is the only node there is', { cluster: { nodes: 1, silent: 1 } }],
  ])('stays where %s', (_, change) => {
    expect(decideLost(question({ suspected: new Map([['x', since]]), ...change })).lost).toEqual([]);
  });

  it('is ended though Slurm hears from the node again, where nobody there could end it for much longer', () => {
    const back = { ...gone, scheduler: 'hears' as const };
    const first = decideLost(question());
    const early = decideLost(question({ ...ofX(back), ...first, now_ms: 219_999 }));
    expect(early.lost).toEqual([]);
    expect(decideLost(question({ ...ofX(back), ...early, now_ms: 220_000 })).lost).toEqual([
      {
        launch_id: 'x',
        nodes: [],
        because:
          'the agent on node a1 has been gone from the mesh for 120 s without a word, and for Slurm the job runs on',
      },
    ]);
  });

  it('is waited for two minutes at least where its agent alone is gone: Slurm knows more by then', () => {
    const back = { ...ofX({ ...gone, scheduler: 'hears' }), hold_ms: 5_000 };
    const early = decideLost(
      question({ ...back, suspected: new Map([['x', { gone_since_ms: 0 }]]), now_ms: 119_999 }),
    );
    expect(early.lost).toEqual([]);
    expect(decideLost(question({ ...back, ...early, now_ms: 120_000 })).lost).toHaveLength(1);
  });

  it.each<[string, Partial<LossQuestion>]>([
    ['its agent said that it ends', ofX({ ...gone, scheduler: 'hears', has_ended: true })],
    ['its agent is back', ofX(fine)],
    ['Slurm knows no such node', ofX({ ...gone, scheduler: 'unknown' })],
    [
      'Slurm has suspended it',
      { launches: [{ launch_id: 'x', nodes: [{ ...gone, scheduler: 'hears' }], runs: false }] },
    ],
  ])('stays, however long, where %s', (_, change) => {
    const decided = decideLost(
      question({ suspected: new Map([['x', { gone_since_ms: 0 }]]), now_ms: 10_000_000, ...change }),
    );
    expect(decided.lost).toEqual([]);
    expect(decided.suspected.get('x')?.gone_since_ms).toBeUndefined();
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
          launches: [{ launch_id: 'x', nodes, runs: true }],
          cluster: { nodes: 8, silent },
          suspected: new Map([['x', { lost_since_ms: now_ms - lasted_ms }]]),
          hold_ms: 30_000,
        });
        const both = nodes.some(({ agent, scheduler }) => agent === 'gone' && scheduler === 'silent');
        expect(lost.length > 0).toBe(both && lasted_ms >= 30_000 && silent <= 4);
      }),
    );
  });
});
