/** Nodes whose clocks are an hour ahead and an hour behind (libfaketime in their jobs), on a real Slurm cluster. */
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { installPrograms } from '../cluster/install.ts';
import { hpcserveProgram, UserHome } from '../cluster/user-home.ts';

const ready = await installPrograms(['faketime'], ['faketime']);
const lacking = ready.ready ? '' : ` [skipped: ${ready.missing}]`;

/** Variables by which libfaketime is in a process and those it starts. Time that goes on evenly stays as it is. */
function fakeTime(): string[] {
  const { sharedObjects } = process.report.getReport() as { sharedObjects: string[] };
  const libraries = dirname(sharedObjects.find((path) => path.endsWith('/libc.so.6'))!);
  return [`LD_PRELOAD=${join(libraries, 'faketime/libfaketime.so.1')}`, 'FAKETIME_DONT_FAKE_MONOTONIC=1'];
}

describe.skipIf(!ready.ready)(`nodes whose clocks are wrong${lacking}`, () => {
  let home: UserHome;
  const hpcserve = (...argv: string[]) => home.hpcserve(...argv);
  const models = { gh200: 'ahead', a100: 'behind' };
  interface Status {
    phase: string;
    launches: { launch_id: string; job_id: string; node_kind: string; units: { node?: string }[] }[];
  }
  const status = async (): Promise<Status> =>
    JSON.parse((await hpcserve('status', 'demo', '--json')).stdout).deployments[0];
  const asked = async (model: string): Promise<number> =>
    (await hpcserve('chat', model, 'Hello', '--max-tokens', '4')).code;
  const launchFolder = (launch_id: string): string =>
    join(home.folder, '.hpcserve/wrong/deployments/demo/launches', launch_id);
  const kept = (): string[] =>
    readFileSync(join(home.folder, '.hpcserve/wrong/keeper/keeper.log'), 'utf8')
      .split('\n')
      .filter((line) => line.includes('"kind":"kept"'));

  beforeAll(async () => {
    const prologue = [
      'case $SLURMD_NODENAME in gh*) FAKETIME=+1h ;; *) FAKETIME=-1h ;; esac',
      `export FAKETIME ${fakeTime().join(' ')}`,
    ];
    home = await UserHome.open({
      site: (shipped) =>
        `${shipped.replace('name: test-cluster', 'name: wrong')}runtime: ${JSON.stringify({ prologue })}\n`,
    });
    const small = { source: './toy.gguf', cpu_threads: 1, context_tokens: 512 };
    home.write('model.yaml', {
      name: 'demo',
      models: Object.entries(models).map(([kind, name]) => ({
        ...small,
        name,
        devices: { kind: 'gpu', node_kinds: [kind] },
      })),
    });
    const { code, stderr } = await hpcserve('deploy', '--yes', 'model.yaml', '--timeout', '90s');
    expect(code, stderr).toBe(0);
  }, 120_000);
  afterAll(() => home?.close());

  it('serve and answer, and every time that people see is right', async () => {
    for (const model of Object.values(models)) expect(await asked(model)).toBe(0);
    const { launches } = await status();
    for (const { launch_id, node_kind, units } of launches) {
      // The clock of the job is as wrong as the test believes.
      const [{ node } = {}] = units;
      const { started_at_ms } = JSON.parse(
        readFileSync(join(launchFolder(launch_id), `${node}.state.json`), 'utf8'),
      );
      const ahead_h = (started_at_ms - Date.now()) / 3_600_000;
      expect(Math.round(ahead_h)).toBe(node_kind === 'gh200' ? 1 : -1);
    }
    const { stdout } = await hpcserve('status');
    expect(stdout).toMatch(/2 of 2 replicas serve +\(\d+ s old/);
    expect(stdout.match(/RUNNING, 2\d min/g)).toHaveLength(2);
    const nodes = JSON.parse((await hpcserve('nodes', '--json')).stdout).nodes as {
      node: string;
      clock_ahead_ms: number;
      heard_ms_ago?: number;
    }[];
    expect(nodes.map(({ clock_ahead_ms }) => Math.round(clock_ahead_ms / 60_000)).sort()).toEqual([-60, 60]);
    for (const { heard_ms_ago = 0 } of nodes) {
      expect(heard_ms_ago).toBeGreaterThanOrEqual(0);
      expect(heard_ms_ago).toBeLessThan(60_000);
    }
  });

  it('are named by doctor, with how much they differ; so is a login node that differs from Slurm', async () => {
    const { stdout } = await hpcserve('doctor');
    expect(stdout).toMatch(/WARNING +clock of gh\d: (1 h|59 min \d+ s) ahead of the gateway's host/);
    expect(stdout).toMatch(/WARNING +clock of a\d: 1 h.* behind the gateway's host/);
    expect(stdout).not.toMatch(/clock of Slurm/);
    const fake = ['env', 'FAKETIME=+1h', ...fakeTime()];
    const here = await home.run([...fake, ...hpcserveProgram, 'doctor']);
    expect(here.stdout).toMatch(/WARNING +clock of Slurm: Slurm's controller is .* behind this host/);
  });

  it('have their jobs replaced when those end, and no sooner', async () => {
    expect(kept()).toEqual([]);
    const { launches } = await status();
    const before = new Set(launches.map(({ job_id }) => job_id));
    await home.run(['scancel', ...before]);
    await expect.poll(() => kept().length, { timeout: 60_000 }).toBe(2);
    for (const model of Object.values(models))
      await expect.poll(() => asked(model), { timeout: 60_000 }).toBe(0);
    const after = await status();
    expect(after.launches.some(({ job_id }) => before.has(job_id))).toBe(false);
    expect(kept()).toHaveLength(2);
    const { code, stderr } = await hpcserve('stop', 'demo');
    expect(code, stderr).toBe(0);
    expect(JSON.parse((await hpcserve('nodes', '--json')).stdout).nodes).toEqual([]);
  }, 150_000);
});
