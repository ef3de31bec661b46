/** The client's own logic on a scripted runner; everything else is tried on a real Slurm in client.e2e.test.ts. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { SlurmCommandClient } from '../../slurm/client.ts';
import {
  type CommandOptions,
  type CommandResult,
  type CommandRunner,
  LocalCommandRunner,
  slurmCommandEnvironment,
} from '../../slurm/command-runner.ts';
import { HpcserveError } from '../../spec/errors/error.ts';

type Answer = Partial<CommandResult> | HpcserveError;

/** Answers the commands a test expects; any other is a defect of the client and fails. */
class ScriptedRunner implements CommandRunner {
  readonly asked: { argv: string[]; options: CommandOptions }[] = [];
  readonly #answers: [pattern: RegExp, answer: Answer][];
  constructor(answers: [RegExp, Answer][]) {
    this.#answers = answers;
  }
  async run(argv: readonly string[], options: CommandOptions): Promise<CommandResult> {
    this.asked.push({ argv: [...argv], options });
    const answer = this.#answers.find(([pattern]) => pattern.test(argv.join(' ')))?.[1];
    if (answer === undefined) throw new Error(`unexpected command: ${argv.join(' ')}`);
    if (answer instanceof HpcserveError) throw answer;
    return { stdout: '', stderr: '', code: 0, ...answer };
  }
}

const script = { text: '#!/bin/bash\n' };
const queued = (id: string, state = 'RUNNING'): string =>
  `${[id, id, 'N/A', state, 'None', '', 'n1', 'j', 'ada', '(null)', '(null)', 'p', 'N/A', 'N/A', 'N/A', '1:00', '0', '0'].join('\u001f')}\u001e\n`;

describe('submit', () => {
  test('the number is found among what a site’s wrapper prints; stderr of a success is warnings', async () => {
    const runner = new ScriptedRunner([
      [
        /^sbatch --parsable$/,
        { stdout: 'Welcome 2 the cluster\n123;alpha\nbye\n', stderr: 'sbatch: quota 90%\n' },
      ],
    ]);
    expect(await new SlurmCommandClient(runner).submit(script, [])).toEqual({
      job_id: '123',
      cluster: 'alpha',
      warnings: ['quota 90%'],
    });
    expect(runner.asked[0]?.options.input).toBe('#!/bin/bash\n');
  });

  test('a file is named, not piped', async () => {
    const runner = new ScriptedRunner([[/./, { stdout: '7\n' }]]);
    await new SlurmCommandClient(runner).submit({ path: '/a b/job.sh' }, []);
    expect(runner.asked[0]).toMatchObject({ argv: ['sbatch', '--parsable', '/a b/job.sh'], options: {} });
  });

  test.each<[string, Answer]>([
    [
      'sbatch says so',
      {
        code: 1,
        stderr: 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation',
      },
    ],
    ['sbatch does not end', new HpcserveError('E_SLURM_UNREACHABLE', { what: 'sbatch gave no answer' })],
  ])('an answer that got lost may have been a job: %s', async (_, answer) => {
    const failing = new SlurmCommandClient(new ScriptedRunner([[/sbatch/, answer]])).submit(script, []);
    await expect(failing).rejects.toMatchObject({
      code: 'E_SLURM_UNREACHABLE',
      details: { may_have_been_submitted: true },
    });
  });

  test('success without a number is an error', async () => {
    const client = new SlurmCommandClient(new ScriptedRunner([[/sbatch/, { stdout: 'ok\n' }]]));
    await expect(client.submit(script, [])).rejects.toMatchObject({ code: 'E_SLURM_ANSWER' });
  });

  test('env reports a missing program as 127', async () => {
    const client = new SlurmCommandClient(
      new ScriptedRunner([[/./, { code: 127, stderr: "env: 'squeue': No such file or directory" }]]),
    );
    await expect(client.jobs(['1'])).rejects.toMatchObject({ code: 'E_SLURM_COMMAND_MISSING' });
  });
});

describe('jobs', () => {
  test('one squeue for all; accounting is asked only for what the queue no longer has', async () => {
    const past = ['9', '9', 'TIMEOUT', '0:15', '', 'p', 'j', 'ada', '', '', 'n1', '', '', '', '', ''].join(
      '\u001f',
    );
    const runner = new ScriptedRunner([
      [/squeue/, { stdout: queued('1') + queued('2') }],
      [/scontrol show config/, { stdout: 'AccountingStorageType = accounting_storage/slurmdbd\n' }],
      [/sacct/, { stdout: `${past}\n` }],
    ]);
    const client = new SlurmCommandClient(runner);
    const found = await client.jobs(['1', '2', '9', '2']);
    expect(found.map((job) => [job.job_id, job.state, job.source])).toEqual([
      ['1', 'RUNNING', 'squeue'],
      ['2', 'RUNNING', 'squeue'],
      ['9', 'TIMEOUT', 'sacct'],
    ]);
    expect(runner.asked[0]?.argv).toContain('--jobs=1,2,9');
    await client.jobs(['1', '2']);
    expect(runner.asked.map(({ argv }) => argv.find((word) => /^s(queue|acct|control)$/.test(word)))).toEqual(
      ['squeue', 'scontrol', 'sacct', 'squeue'],
    );
  });

  test('of an array, only the tasks that are meant; what the queue no longer has of it is looked up by task', async () => {
    const past = ['31', '30_0', 'FAILED', '1:0', '', 'p', 'j', 'ada', '', '', 'n1', '', '', '', '', ''];
    const task = (id: string, shown: string): string =>
      queued(id).replace(`\u001f${id}\u001f`, `\u001f${shown}\u001f`);
    const runner = new ScriptedRunner([
      [/squeue/, { stdout: task('32', '30_1') + task('33', '30_2') + task('30', '30_[3-5]') }],
      [/scontrol show config/, { stdout: 'AccountingStorageType = accounting_storage/slurmdbd\n' }],
      [/sacct/, { stdout: `${past.join('\u001f')}\n` }],
    ]);
    const found = await new SlurmCommandClient(runner).jobs(['30_0', '30_2', '30_3', '30_4']);
    expect(found.map((job) => job.array_task)).toEqual(['2', '[3-5]', '0']);
    expect(runner.asked[0]?.argv).toContain('--jobs=30');
    // Else Slurm cuts long ranges off.
    expect(runner.asked[0]?.argv).toContain('SLURM_BITSTR_LEN=0');
    expect(runner.asked.at(-1)?.argv).toContain('--jobs=30_0');
  });

  test('without accounting the controller’s memory is asked', async () => {
    const runner = new ScriptedRunner([
      [/squeue/, { code: 1, stderr: 'slurm_load_jobs error: Invalid job id specified' }],
      [/show config/, { stdout: 'AccountingStorageType = accounting_storage/none\n' }],
      [
        /show job 9/,
        { stdout: 'JobId=9 JobName=j JobState=FAILED Reason=None ExitCode=1:0 NodeList=(null)\n' },
      ],
      [/show job 8/, { code: 1, stderr: 'slurm_load_jobs error: Invalid job id specified' }],
      [/show job 7_1/, { code: 1, stdout: 'Job 7_1 not found\n' }],
    ]);
    expect(await new SlurmCommandClient(runner).jobs(['7_1', '8', '9'])).toMatchObject([
      { job_id: '9', state: 'FAILED', exit_code: 1 },
    ]);
  });

  test.each<[string, Answer]>([
    [
      'its host does not answer',
      { code: 1, stderr: 'sacct: error: Problem talking to the database: Connection timed out\n' },
    ],
    [
      'its process is gone',
      {
        code: 1,
        stderr:
          'sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:db1:6819: No route to host\nsacct: error: Sending PersistInit msg: No error\n',
      },
    ],
    ['it takes too long', new HpcserveError('E_SLURM_UNREACHABLE', { what: 'sacct gave no answer' })],
  ])('while slurmdbd is away, what the controller knows is told all the same: %s', async (_, answer) => {
    const ended = 'JobId=8 JobName=j JobState=FAILED Reason=None ExitCode=1:0 NodeList=(null)\n';
    const runner = new ScriptedRunner([
      [/squeue/, { stdout: queued('1') }],
      [/show config/, { stdout: 'AccountingStorageType = accounting_storage/slurmdbd\n' }],
      [/sacct/, answer],
      [/show job 8/, { stdout: ended }],
      [/show job 9/, { code: 1, stderr: 'slurm_load_jobs error: Invalid job id specified' }],
    ]);
    const client = new SlurmCommandClient(runner);
    expect((await client.jobs(['1', '8', '9'])).map((job) => [job.job_id, job.state, job.source])).toEqual([
      ['1', 'RUNNING', 'squeue'],
      ['8', 'FAILED', 'scontrol'],
    ]);
    await expect(client.accounted(['8'])).rejects.toMatchObject({
      code: 'E_SLURM_UNREACHABLE',
      message: expect.stringMatching(/slurmdbd|sacct/),
    });
  });

  test('nothing is asked about nothing, and the version once', async () => {
    const runner = new ScriptedRunner([[/sinfo --version/, { stdout: 'slurm 24.05.1\n' }]]);
    const client = new SlurmCommandClient(runner);
    expect(await client.jobs([])).toEqual([]);
    await client.cancel([]);
    await client.version();
    await client.version();
    expect(runner.asked).toHaveLength(1);
  });

  test.each([
    'sinfo: error: s_p_parse_file: cannot stat file /nowhere: No such file or directory\nsinfo: fatal: Unable to process configuration file\n',
    'sinfo: error: fetch_config: DNS SRV lookup failed\nsinfo: fatal: Could not establish a configuration source\n',
  ])('a machine without Slurm’s configuration is told where it is looked for', async (stderr) => {
    const client = new SlurmCommandClient(new ScriptedRunner([[/sinfo/, { code: 1, stderr }]]));
    const error = await client.nodeGroups().catch((thrown: unknown) => thrown as HpcserveError);
    expect(error).toMatchObject({
      code: 'E_SLURM_UNREACHABLE',
      message: 'Slurm has no configuration here, so its controller cannot be found',
      try: [expect.stringMatching(/login node.*slurm\.conf_file.*SLURM_CONF/)],
      details: { retryable: true },
    });
    for (const line of (error as HpcserveError).because) expect(line).not.toMatch(/error:|fatal:/);
  });

  test('a version that could not be read is asked for again', async () => {
    const answers: [RegExp, Answer][] = [
      [/sinfo/, { code: 1, stderr: 'slurm_load_node: Unable to contact slurm controller (connect failure)' }],
    ];
    const client = new SlurmCommandClient(new ScriptedRunner(answers));
    await expect(client.version()).rejects.toMatchObject({ code: 'E_SLURM_UNREACHABLE' });
    answers[0] = [/sinfo/, { stdout: 'slurm 24.05.1\n' }];
    expect((await client.version()).year).toBe(24);
  });
});

test('the controller’s clock is read in UTC, whatever the host’s time zone is', async () => {
  const bin_dir = mkdtempSync(join(tmpdir(), 'hpcserve-scontrol-'));
  try {
    // Slurm prints local times: here those of a host in Japan, unless it is told another zone.
    const says = '[ -n "$TZ" ] || export TZ=JST-9\necho "Configuration data as of $(date +%FT%T)"';
    writeFileSync(join(bin_dir, 'scontrol'), `#!/bin/sh\n${says}\n`, { mode: 0o700 });
    const environment = { PATH: process.env.PATH };
    const { told_at_ms = 0 } = await new SlurmCommandClient(
      new LocalCommandRunner({ bin_dir, environment }),
    ).config();
    expect(Math.abs(told_at_ms - Date.now())).toBeLessThan(60_000);
  } finally {
    rmSync(bin_dir, { recursive: true });
  }
});

test('no secret and no SBATCH variable reaches Slurm’s commands', () => {
  const given = {
    HOME: '/h',
    PATH: '/bin',
    LC_ALL: 'C',
    SLURM_CONF: '/c',
    LMOD_CMD: '/l',
    OPENAI_API_KEY: 'x',
    HF_TOKEN: 'x',
    SBATCH_PARTITION: 'x',
    SLURM_JOB_ID: '1',
    SLURM_MEM_PER_CPU: '1',
  };
  expect(Object.keys(slurmCommandEnvironment(given)).sort()).toEqual([
    'HOME',
    'LC_ALL',
    'LMOD_CMD',
    'PATH',
    'SLURM_CONF',
  ]);
});

test('nodes that cannot be named are told once, and left out', async () => {
  const line = (nodes: string): string =>
    `${['gpu', nodes, 'idle', '', '', '', '64', '2', '32', '1', '515000', '0/64/0/64'].join('\u001f')}\u001e\n`;
  const answers: [RegExp, Answer][] = [[/^sinfo/, { stdout: line('n[1-') + line('n7') }]];
  const told: string[] = [];
  const client = new SlurmCommandClient(new ScriptedRunner(answers), {
    onUnreadable: (what) => told.push(what),
  });
  for (let times = 0; times < 2; times++)
    expect((await client.nodeGroups()).map(({ nodes }) => nodes)).toEqual([['n7']]);
  expect(told).toEqual([expect.stringMatching(/partition gpu .*"n\[1-"$/)]);
  answers[0] = [/^sinfo/, { stdout: line('n[2-') }];
  expect(await client.nodeGroups()).toEqual([]);
  expect(told).toHaveLength(2);
});
