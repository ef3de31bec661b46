/** `status` of a deployment of 500 jobs, 24 of which run, beside the one squeue it needs. */
import { chmodSync, chownSync, cpSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { AgentState } from '../../spec/agent-state.ts';
import { launchFiles } from '../../spec/state-layout.ts';
import type { Stage } from '../preemption/stage.ts';
import type { BenchResult } from '../result.ts';
import { median } from './median.ts';

const jobs = 500;
/** As many as the cluster has cores for, beside the job that serves. */
const running = 24;
const rounds = 11;
const most_ms = 300;

export async function measureStatus(stage: Stage, log: (line: string) => void): Promise<BenchResult[]> {
  const file = stage.modelFile('many', { devices: { kind: 'gpu' }, tier: 'stable' });
  await stage.deploy(file);
  const many = new ManyJobs(stage);
  await many.submit();
  try {
    const known = JSON.parse((await stage.run(['status', 'many', '--json'])).stdout) as {
      deployments: { launches: { job?: { phase: string } }[] }[];
    };
    const phases = known.deployments[0]!.launches.map(({ job }) => job?.phase);
    const count = (wanted: string): number => phases.filter((phase) => phase === wanted).length;
    log(`status knows ${phases.length} jobs: ${count('running')} run, ${count('pending')} wait`);
    if (count('running') + count('pending') !== jobs) throw new Error('status does not know all jobs');
    const questions = await countQuestions(stage);
    const times = { status: [] as number[], squeue: [] as number[], node: [] as number[] };
    for (let round = 0; round < rounds; round++) {
      times.status.push(await timed(() => stage.run(['status'])));
      times.squeue.push(await timed(() => many.squeue()));
      times.node.push(await timed(() => stage.cluster.runAs('user', [process.execPath, '-e', '0'])));
    }
    const [ours_ms, squeue_ms, node_ms] = [times.status, times.squeue, times.node].map(median) as [
      number,
      number,
      number,
    ];
    return [
      {
        what: `hpcserve status, ${jobs} jobs, the whole command (median of ${rounds})`,
        unit: 'ms',
        ours: ours_ms,
        peer: `squeue alone; an empty Node process takes ${Math.round(node_ms)} ms`,
        theirs: squeue_ms,
        ratio: squeue_ms / ours_ms,
        bar: `≤ ${most_ms} ms`,
        holds: ours_ms <= most_ms,
      },
      {
        what: `squeue calls of it (all questions: ${questions.join(', ')})`,
        unit: '',
        ours: questions.filter((each) => each === 'squeue').length,
        peer: '',
        theirs: null,
        ratio: null,
        bar: '= 1',
        holds: questions.filter((each) => each === 'squeue').length === 1,
      },
    ];
  } finally {
    await many.end();
  }
}

async function timed(what: () => Promise<{ code: number; stderr: string }>): Promise<number> {
  const begin_ms = performance.now();
  const { code, stderr } = await what();
  if (code !== 0) throw new Error(stderr);
  return performance.now() - begin_ms;
}

/** Slurm's commands that one `status` runs, in order. */
async function countQuestions(stage: Stage): Promise<string[]> {
  const folder = join(stage.folder, 'counted');
  mkdirSync(folder);
  chmodSync(folder, 0o755);
  const notes = stage.write('questions', '', 0o666);
  const path = stage.cluster.env.PATH ?? '';
  for (const program of ['squeue', 'sinfo', 'scontrol', 'sacct', 'sacctmgr']) {
    const real = (await stage.slurm('which', program).catch(() => '')) || `/usr/bin/${program}`;
    writeFileSync(join(folder, program), `#!/bin/sh\necho ${program} >>'${notes}'\nexec '${real}' "$@"\n`, {
      mode: 0o755,
    });
  }
  await timed(() => stage.run(['status'], { PATH: `${folder}:${path}` }));
  return readFileSync(notes, 'utf8').trim().split('\n');
}

/** The jobs, small and real, and the deployment that says that they are its own. */
class ManyJobs {
  readonly #stage: Stage;
  readonly #folder: string;
  readonly #file: string;
  readonly #before: string;
  #ids: string[] = [];

  constructor(stage: Stage) {
    this.#stage = stage;
    this.#folder = join(stage.folder, '.hpcserve/slurm/deployments/many');
    this.#file = join(this.#folder, 'deployment.json');
    this.#before = readFileSync(this.#file, 'utf8');
  }

  async submit(): Promise<void> {
    const loop = `
for index in $(seq 1 ${jobs - 1}); do
  hold=--hold; if [ "$index" -le ${running} ]; then hold=--no-kill; fi
  id=$(printf '%016x' "$index")
  sbatch --parsable $hold --partition=gh200,a100,cpu --ntasks=1 --mem=100M --time=30 --output=/dev/null \\
    --job-name="many-$(printf '%08x' "$index")" --comment="hpcserve:$id" --wrap 'sleep 1800'
done`;
    this.#ids = (await this.#stage.slurm('sh', '-c', loop)).split('\n');
    const state = JSON.parse(this.#before) as {
      models: { replicas: number }[];
      launches: { launch_id: string; job_id: string; planned: { units: { unit: string }[] } }[];
    };
    const [first] = state.launches;
    const launches = join(this.#folder, 'launches');
    const model = join(launches, first!.launch_id);
    const state_file = readdirSync(model).find((name) => name.endsWith('.state.json'))!;
    const agent = JSON.parse(readFileSync(join(model, state_file), 'utf8')) as AgentState;
    for (const [index, job_id] of this.#ids.entries()) {
      const launch_id = (index + 1).toString(16).padStart(16, '0');
      const unit = `many-${index + 1}`;
      const [planned_unit] = first!.planned.units;
      state.launches.push({
        ...first!,
        launch_id,
        job_id,
        planned: { ...first!.planned, units: [{ ...planned_unit!, unit }] },
      });
      const folder = join(launches, launch_id);
      mkdirSync(folder);
      if (index >= running) continue;
      cpSync(join(model, launchFiles.launch), join(folder, launchFiles.launch));
      const sessions = agent.sessions.map((each) => (each.unit ? { ...each, unit, units: [unit] } : each));
      writeFileSync(join(folder, state_file), JSON.stringify({ ...agent, launch_id, sessions }));
    }
    state.models[0]!.replicas = jobs;
    await this.#stage.cluster.runAs('root', ['chown', '-R', this.#stage.cluster.user.name, launches]);
    this.#save(JSON.stringify(state));
    await this.#untilRunning();
  }

  squeue(): ReturnType<Stage['run']> {
    return this.#stage.cluster.runAs('user', ['squeue', '--noheader', `--jobs=${this.#ids.join(',')}`]);
  }

  async end(): Promise<void> {
    this.#save(this.#before);
    await this.#stage.slurm('scancel', ...this.#ids);
  }

  async #untilRunning(): Promise<void> {
    const deadline_ms = performance.now() + 60_000;
    for (;;) {
      const states = await this.#stage.slurm('squeue', '--noheader', '--format=%t', '--states=RUNNING');
      // With the job that serves.
      if (states.split('\n').length > running) return;
      if (performance.now() > deadline_ms) throw new Error('the jobs did not start');
    }
  }

  #save(text: string): void {
    writeFileSync(this.#file, text);
    chownSync(this.#file, this.#stage.cluster.user.uid, this.#stage.cluster.user.gid);
  }
}
