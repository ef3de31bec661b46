/** What the keeper asks of mesh and Slurm about nodes of its jobs, and what it remembers of the answers. */
import { expect, it } from 'vitest';
import { LostNodes } from '../../../control/keeper/lost-nodes.ts';
import type { Observation } from '../../../control/reconcile/observe.ts';
import type { Operations } from '../../../control/runner/operations.ts';
import { deploymentState, launchRecord } from '../support.ts';

const launch = launchRecord(1, { phase: 'submitted', job_id: '7' });
const state = deploymentState([launch]);
const observation = {
  launches: new Map([
    [launch.launch_id, { job: { job_id: '7', phase: 'running', state: 'RUNNING' }, agents: [] }],
  ]),
} as unknown as Observation;

function watch(lost_after_s = 30, seen = observation) {
  const world = { now_ms: 0, asked: 0, agents: ['SERVING'], a1: ['mixed'] };
  const operations = {
    loaded: { site: { keeper: { lost_after_s } }, layout: { mesh_folder: '/mesh' } },
    runner: { poll_interval_ms: 1000 },
    now_ms: () => world.now_ms,
    slurm: {
      nodeGroups: async () => {
        world.asked++;
        return [
          { nodes: ['a1'], states: world.a1 },
          { nodes: ['a2', 'a3'], states: ['idle'] },
        ];
      },
    },
  } as unknown as Operations;
  const nodes = new LostNodes(operations, async () => ({
    snapshot: () =>
      world.agents.map((lifecycle) => ({
        lifecycle: lifecycle as 'LEFT',
        metadata: { role: 'node-agent', launch_id: launch.launch_id, node: 'a1' } as never,
      })),
    close: async () => {},
  }));
  const at = (now_s: number) => {
    world.now_ms = 1000 * now_s;
    return nodes.find(state, seen);
  };
  return { world, nodes, at };
}

it('asks Slurm nothing while all agents are there, and ends a job after both were silent', async () => {
  const { world, nodes, at } = watch();
  expect((await at(0)).size + (await at(10)).size).toBe(0);
  expect(world.asked).toBe(0);
  Object.assign(world, { agents: ['LEFT'], a1: ['mixed', 'not_responding'] });
  expect((await at(20)).size).toBe(0);
  // Not as often as it is called.
  await at(21);
  expect(world.asked).toBe(1);
  expect((await at(49)).size).toBe(0);
  expect([...(await at(50))]).toEqual([[launch.launch_id, expect.stringContaining('node a1 is lost')]]);
  expect([...nodes.nodes]).toEqual(['a1']);
});

it('an agent that comes back under another session is there, and the time begins anew', async () => {
  const { world, at } = watch();
  Object.assign(world, { agents: ['LEFT'], a1: ['down'] });
  await at(0);
  world.agents = ['LEFT', 'SERVING'];
  expect((await at(40)).size).toBe(0);
  world.agents = ['LEFT', 'LEFT'];
  expect((await at(50)).size).toBe(0);
  expect((await at(79)).size).toBe(0);
  expect((await at(80)).size).toBe(1);
});

it('ends a job whose agent went with its node, though the node came back before Slurm noticed', async () => {
  const { world, nodes, at } = watch();
  Object.assign(world, { agents: ['LEFT'], a1: ['mixed', 'not_responding'] });
  await at(0);
  world.a1 = ['mixed'];
  expect((await at(20)).size + (await at(119)).size).toBe(0);
  expect([...(await at(120))]).toEqual([
    [launch.launch_id, expect.stringContaining('the agent on node a1 has been gone')],
  ]);
  expect(nodes.nodes.size).toBe(0);
});

it('leaves a job alone whose agent said that it ends: what its script still does is its own', async () => {
  const agents = [{ node: 'a1', phase: 'stopped' }];
  const job = { job_id: '7', phase: 'running', state: 'RUNNING' };
  const seen = { launches: new Map([[launch.launch_id, { job, agents }]]) } as unknown as Observation;
  const { world, at } = watch(30, seen);
  world.agents = ['LEFT'];
  await at(0);
  expect((await at(1000)).size).toBe(0);
});

it.each([['idle'], ['down', 'not_responding']])(
  'a lost node is left out of plans until Slurm says something new of it: %s',
  async (...states) => {
    const { world, nodes, at } = watch(1);
    Object.assign(world, { agents: ['LEFT'], a1: ['mixed', 'not_responding'] });
    await at(0);
    expect((await at(10)).size).toBe(1);
    // The agent of its successor.
    world.agents = ['SERVING'];
    await at(20);
    expect(nodes.nodes.size).toBe(1);
    world.a1 = states;
    await at(30);
    expect(nodes.nodes.size).toBe(0);
    const { asked } = world;
    await at(40);
    expect(world.asked).toBe(asked);
  },
);

it('0 s leaves all to Slurm', async () => {
  const never = watch(0);
  Object.assign(never.world, { agents: ['LEFT'], a1: ['down'] });
  await never.at(0);
  expect((await never.at(1000)).size).toBe(0);
  expect(never.world.asked).toBe(0);
});
