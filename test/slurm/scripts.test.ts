/**
 * Every template for every shipped site and every container form: whole text, bash -n, shellcheck, and a run with a
 * recording srun.
 */
import { execFileSync, spawn } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import { renderJobScript } from '../../slurm/job-script.ts';
import { type SiteConfig, siteSchema } from '../../spec/site.ts';
import { ensureShellcheckInstalled } from '../cluster/install.ts';
import { waitUntil } from '../cluster/processes.ts';
import { allScriptCases, caseScript, shippedSite } from './script-cases.ts';

const golden = join(packageRoot, 'test', 'slurm', 'golden');
const cases = allScriptCases();
let folder: string;
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-scripts-'));
  const shellcheck = await ensureShellcheckInstalled();
  if (!shellcheck.ready) throw new Error(shellcheck.missing);
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe('golden scripts', () => {
  test.each(cases.map(({ name, script }) => [name, script] as const))('%s', (name, script) => {
    const file = join(golden, `${name}.sh`);
    expect(
      existsSync(file),
      `${file} is missing: write it with dist/test/slurm/write-golden.js and read it`,
    ).toBe(true);
    expect(renderJobScript(script)).toBe(readFileSync(file, 'utf8'));
  });

  test('none is left over', () => {
    expect(readdirSync(golden).sort()).toEqual(cases.map(({ name }) => `${name}.sh`).sort());
  });
});

/** A site with everything a script can hold, in one container form. */
function fullSite(
  container: SiteConfig['runtime']['container'],
  python: SiteConfig['runtime']['python'],
): SiteConfig {
  const site = shippedSite('generic-slurm');
  return siteSchema.parse({
    ...site,
    scratch_dir: '/scratch/ada',
    runtime: {
      modules: ['cuda/12.4', "odd'name"],
      module_purge: true,
      module_init: '/opt/init dir/bash',
      prologue: ['ulimit -n 65536', 'echo "$HOSTNAME"'],
      environment: { GREETING: "it's $HOME", EMPTY: '', LINES: 'a\nb' },
      container,
      python,
      srun_args: ['--label'],
    },
  });
}

test('bash and shellcheck find nothing, over templates × sites × containers × pythons', () => {
  const containers: SiteConfig['runtime']['container'][] = [
    { runtime: 'none', binds: [], flags: [] },
    { runtime: 'apptainer', image: '/images/a b.sif', binds: ['/data'], flags: ['--nv'] },
    { runtime: 'enroot-pyxis', image: 'nvcr.io#nvidia/x:1', binds: ['/data'], flags: [] },
    { runtime: 'podman', image: 'x', binds: ['/data'], flags: [], command: 'podman-hpc' },
    { runtime: 'edf', image: 'vllm', binds: [], flags: [] },
  ];
  const pythons: SiteConfig['runtime']['python'][] = [
    undefined,
    { kind: 'venv', path: '/envs/my venv' },
    { kind: 'conda', path: 'serve' },
    { kind: 'conda', path: 'serve', conda_base: '/opt/conda' },
  ];
  const files: string[] = [];
  const write = (name: string, text: string): void => {
    const file = join(folder, `${name}.sh`);
    writeFileSync(file, text);
    files.push(file);
  };
  for (const { name, script } of cases) write(name, renderJobScript(script));
  for (const container of containers)
    for (const [index, python] of pythons.entries())
      for (const role of ['agent', 'gateway'] as const) {
        const site = fullSite(container, python);
        write(
          `full.${container.runtime}.${index}.${role}`,
          renderJobScript(caseScript(site, role, role === 'agent' ? 'gpu' : undefined)),
        );
      }
  expect(files.length).toBeGreaterThan(50);
  for (const file of files) execFileSync('bash', ['-n', file]);
  // Throws with shellcheck's own words when it finds something.
  execFileSync('shellcheck', ['--shell=bash', '--severity=style', ...files], { encoding: 'utf8' });
}, 60_000);

describe('run with a recording srun', () => {
  /** Programs that stand where Slurm's would: srun records its words and then does what `body` says. */
  function fakeBin(body: string): string {
    const bin = mkdtempSync(join(folder, 'bin-'));
    const program = (name: string, text: string): void => {
      writeFileSync(join(bin, name), `#!/bin/bash\n${text}\n`);
      chmodSync(join(bin, name), 0o755);
    };
    program(
      'srun',
      `printf '%s\\0' "$@" > "${bin}/argv.part"; env -0 > "${bin}/env"; mv "${bin}/argv.part" "${bin}/argv"\n${body}`,
    );
    program('scancel', `echo "$@" >> "${bin}/asked"; kill -TERM "$(cat "${bin}/task")"`);
    program(
      'scontrol',
      `if [ "$2" = show ]; then cat "${bin}/job" 2>/dev/null; else echo "$@" >> "${bin}/requeued"; fi`,
    );
    return bin;
  }

  function start(
    site: SiteConfig,
    kind: string,
    bin: string,
    script = caseScript(site, 'agent', kind),
  ): { exit: Promise<number | null>; pid: number } {
    const file = join(bin, 'job.sh');
    writeFileSync(file, renderJobScript(script));
    const task = script.array ? { SLURM_ARRAY_JOB_ID: '42', SLURM_ARRAY_TASK_ID: '3' } : {};
    const child = spawn('bash', [file], {
      cwd: folder,
      stdio: 'ignore',
      env: { PATH: `${bin}:/usr/bin:/bin`, HOME: folder, SLURM_JOB_ID: '42', ...task },
    });
    return { pid: child.pid!, exit: new Promise((resolve) => child.once('exit', resolve)) };
  }

  test('every word and variable arrives as it was', async () => {
    const site = shippedSite('generic-slurm');
    const marks = join(folder, 'touched');
    const hostile = `a'; touch ${marks}; "$(touch ${marks})" \`touch ${marks}\`\ntouch ${marks}\n#é`;
    const runtime = { ...site.runtime, environment: { HOSTILE: hostile }, srun_args: [`--x=${hostile}`] };
    const bin = fakeBin('exit 9');
    expect(await start({ ...site, runtime }, 'gpu', bin).exit).toBe(9);
    expect(readFileSync(join(bin, 'argv'), 'utf8').split('\0')).toContain(`--x=${hostile}`);
    expect(readFileSync(join(bin, 'env'), 'utf8').split('\0')).toContain(`HOSTILE=${hostile}`);
    expect(existsSync(marks)).toBe(false);
  });

  /** Says whom to signal: whole, and once signals are handled. */
  const ready = (bin: string): string => `echo $$ > "${bin}/task.part"; mv "${bin}/task.part" "${bin}/task"`;
  // Handles signals as srun's task does; the exit code comes a moment after the signal.
  const task = (bin: string): string =>
    `trap 'echo USR1 >> "${bin}/signals"' USR1; trap 'sleep 0.2; exit 5' TERM; ${ready(bin)}; while :; do sleep 0.02; done`;

  test('USR1 goes to srun and the script waits on; TERM goes to the steps by scancel and the exit code is theirs', async () => {
    const bin = fakeBin('exec "$(dirname "$0")/task-program"');
    writeFileSync(join(bin, 'task-program'), `#!/bin/bash\n${task(bin)}\n`);
    chmodSync(join(bin, 'task-program'), 0o755);
    const job = start(shippedSite('test-cluster'), 'gh200', bin);
    expect(await waitUntil(() => existsSync(join(bin, 'task')), 5_000)).toBe(true);
    for (let count = 1; count <= 3; count++) {
      process.kill(job.pid, 'SIGUSR1');
      const seen = (): boolean =>
        existsSync(join(bin, 'signals')) &&
        readFileSync(join(bin, 'signals'), 'utf8').split('\n').length > count;
      expect(await waitUntil(seen, 5_000)).toBe(true);
    }
    process.kill(job.pid, 'SIGTERM');
    expect(await job.exit).toBe(5);
    expect(readFileSync(join(bin, 'asked'), 'utf8')).toBe('--quiet --signal=TERM 42\n');
  });

  test('a task of an array takes its own launch, and speaks to Slurm of itself alone', async () => {
    // Of the last task the job's number is that of the whole array.
    const bin = fakeBin(`trap 'exit 5' TERM; ${ready('$(dirname "$0")')}; while :; do sleep 0.02; done`);
    const launches = join(bin, "a%b 'c'");
    mkdirSync(join(launches, 'task-3'), { recursive: true });
    writeFileSync(join(bin, 'job'), 'JobId=42 JobState=RUNNING Reason=None PreemptTime=2026-11-21T02:02:45');
    const site = shippedSite('test-cluster');
    const script = caseScript(site, 'agent', 'scavenge-gh200', 4);
    const array = { ...script.array!, folder_prefix: join(launches, 'task-') };
    const job = start(site, 'scavenge-gh200', bin, { ...script, array });
    expect(await waitUntil(() => existsSync(join(bin, 'task')), 5_000)).toBe(true);
    expect(readFileSync(join(bin, 'argv'), 'utf8').split('\0').slice(-3, -1)).toEqual([
      '--launch',
      join(launches, 'task-3', 'launch.json'),
    ]);
    process.kill(job.pid, 'SIGTERM');
    expect(await job.exit).toBe(5);
    expect(readFileSync(join(bin, 'asked'), 'utf8')).toBe('--quiet --signal=TERM 42_3\n');
    expect(readFileSync(join(bin, 'requeued'), 'utf8')).toBe('requeue 42_3\n');
  });

  test.each([
    ['preempted', 'JobId=42 JobState=RUNNING Reason=None PreemptTime=2026-11-21T02:02:45 x=y', true],
    ['ended by itself', 'JobId=42 JobState=RUNNING Reason=None PreemptTime=None x=y', false],
    ['cancelled', 'JobId=42 JobState=CANCELLED Reason=None PreemptTime=2026-11-21T02:02:45', false],
  ])('a scavenger job that was %s', async (_, facts, requeued) => {
    const bin = fakeBin('exit 0');
    writeFileSync(join(bin, 'job'), facts);
    expect(await start(shippedSite('test-cluster'), 'scavenge-gh200', bin).exit).toBe(0);
    expect(existsSync(join(bin, 'requeued'))).toBe(requeued);
  });

  test('a module that is not there ends the job with words', () => {
    const site = shippedSite('generic-slurm');
    const bin = fakeBin('exit 0');
    const file = join(bin, 'job.sh');
    const with_modules = {
      ...site,
      runtime: { ...site.runtime, modules: ['cuda'], module_init: join(bin, 'init') },
    };
    writeFileSync(join(bin, 'init'), 'module() { [ "$1" = load ] && [ "$2" != cuda ]; }\n');
    writeFileSync(file, renderJobScript(caseScript(with_modules, 'agent', 'gpu')));
    const run = (): string =>
      execFileSync('bash', [file], {
        encoding: 'utf8',
        stdio: 'pipe',
        env: { PATH: `${bin}:/usr/bin:/bin` },
      });
    expect(run).toThrowError(
      expect.objectContaining({ status: 78, stderr: expect.stringContaining('module load cuda failed') }),
    );
  });
});
