/** Nodes of a real Slurm cluster go down under a deployment: it is planned again, on nodes of another kind. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { DeploymentReport } from '../../../control/status.ts';
import { UserHome } from '../../cluster/user-home.ts';

let home: UserHome;
const nodesOf: Record<string, string> = { gh200: 'gh1,gh2', a100: 'a1,a2' };

beforeAll(async () => {
  home = await UserHome.open({ cluster: 'replan' });
});
afterAll(async () => {
  // Nodes that are up cannot be resumed.
  if (home) for (const nodes of Object.values(nodesOf)) await update(nodes, 'resume');
  await home?.close();
});

async function update(nodes: string, state: string): Promise<{ code: number; stderr: string }> {
  const argv = ['scontrol', 'update', `nodename=${nodes}`, `state=${state}`, 'reason=broken'];
  return home.cluster.runAs('root', argv);
}

/** As an administrator does with broken nodes: one that is only down is back with its next registration. */
async function takeDown(nodes: string): Promise<void> {
  for (const state of ['drain', 'down']) {
    const { code, stderr } = await update(nodes, state);
    expect(code, stderr).toBe(0);
  }
}

async function report(): Promise<DeploymentReport> {
  const { stdout } = await home.hpcserve('status', 'moved', '--json');
  return JSON.parse(stdout).deployments[0] as DeploymentReport;
}

const where = async (): Promise<object> => {
  const { phase, launches } = await report();
  return {
    phase,
    node_kinds: launches.filter((launch) => !launch.superseded).map(({ node_kind }) => node_kind),
  };
};

it('comes back on another kind of node by a new plan, says why, and stays there when the nodes come back', async () => {
  const model = {
    name: 'moved',
    source: './toy.gguf',
    cpu_threads: 1,
    context_tokens: 512,
    devices: { kind: 'gpu' },
    tier: 'stable',
  };
  const file = home.write('moved.yaml', { name: 'moved', models: [model] });
  const deployed = await home.hpcserve('deploy', '--yes', file, '--timeout', '60s');
  expect(deployed.code, deployed.stderr).toBe(0);
  const [first] = (await report()).launches;
  const before = first!.node_kind;
  const after = before === 'gh200' ? 'a100' : 'gh200';

  await takeDown(nodesOf[before]!);
  await expect.poll(where, { timeout: 60_000 }).toEqual({ phase: 'serving', node_kinds: [after] });
  const { planning, launches } = await report();
  const what = `1 × moved on ${after} starts; 1 × moved on ${before} goes`;
  expect(planning?.last).toMatchObject({ trigger: 'loss', changed: true, what });
  const { stdout } = await home.hpcserve('status', 'moved');
  expect(stdout).toMatch(
    new RegExp(
      `planned again \\S+ .*ago \\(loss\\): .*${before}: 0 node\\(s\\) take jobs, 1 are needed; ${what}`,
    ),
  );
  const log = await home.run(['cat', '.hpcserve/test-cluster/keeper/keeper.log']);
  expect(log.stdout).toMatch(/"kind":"replanned","deployment":"moved","trigger":"loss"/);

  // It serves where it is: that its old nodes are back is seen, and no reason to move.
  expect((await update(nodesOf[before]!, 'resume')).code).toBe(0);
  await expect
    .poll(async () => (await report()).planning?.differs_since_ms, { timeout: 60_000 })
    .toBeDefined();
  expect((await report()).launches.map(({ job_id }) => job_id)).toEqual(launches.map(({ job_id }) => job_id));
}, 180_000);
