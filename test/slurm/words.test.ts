/** Slurm's words in plain ones: reasons and refusals. */
import { describe, expect, test } from 'vitest';
import { checkPermissions, type Permissions, withKnownAccounts } from '../../slurm/permissions.ts';
import { explainReason } from '../../slurm/reasons.ts';
import { refusalError } from '../../slurm/refusals.ts';

describe('reasons', () => {
  test.each([
    ['Resources', 'Resources', false],
    ['(Priority)', 'Priority', false],
    ['ReqNodeNotAvail, UnavailableNodes:gh[1-2]', 'ReqNodeNotAvail', false],
    ['ReqNodeNotAvail,_May_be_reserved_for_other_job', 'ReqNodeNotAvail', false],
    ['PartitionTimeLimit', 'PartitionTimeLimit', true],
    ['launch_failed_requeued_held', 'launch failed requeued held', true],
    ['AssocGrpGRESMinutes', 'AssocGrpGRESMinutes', true],
    ['AssocGrpCpuLimit', 'AssocGrpCpuLimit', false],
    ['QOSMaxGRESPerUser', 'QOSMaxGRESPerUser', false],
    ['QOSMaxJobsPerUserLimit', 'QOSMaxJobsPerUserLimit', false],
    ['QOSMaxWallDurationPerJobLimit', 'QOSMaxWallDurationPerJobLimit', true],
    ['QOSMaxGRESPerJob', 'QOSMaxGRESPerJob', true],
    ['QOSGrpNodeLimit', 'QOSGrpNodeLimit', false],
    ['QOSMinGRES', 'QOSMinGRES', true],
    ['MaxGRESPerAccount', 'MaxGRESPerAccount', false],
    ['JobHeldUser', 'JobHeldUser', true],
    ['BadConstraints', 'BadConstraints', true],
  ])('%s', (raw, reason, stuck) => {
    const explained = explainReason(raw);
    expect(explained).toMatchObject({ reason, stuck });
    expect(explained.meaning).not.toContain('Slurm says');
    if (stuck) expect(explained.advice).toBeTruthy();
  });

  test('an unknown reason is passed on, not hidden', () => {
    expect(explainReason('MoonPhase')).toMatchObject({
      reason: 'MoonPhase',
      meaning: 'Slurm says MoonPhase',
      stuck: false,
    });
  });
});

describe('refusals in words of several versions', () => {
  const failed = (words: string): string => `sbatch: error: Batch job submission failed: ${words}\n`;
  test.each([
    ['E_SLURM_ACCOUNT', failed('Invalid account or account/partition combination specified')],
    ['E_SLURM_QOS', failed('Invalid qos specification')],
    [
      'E_SLURM_PARTITION',
      `sbatch: error: invalid partition specified: x\n${failed('Invalid partition name specified')}`,
    ],
    ['E_SLURM_PARTITION', failed('Required partition not available (inactive or drain)')],
    ['E_SLURM_TIME_LIMIT', failed('Requested time limit is invalid (missing or exceeds some limit)')],
    ['E_SLURM_FEATURE', failed('Invalid feature specification')],
    ['E_SLURM_GRES', failed('Invalid generic resource (gres) specification')],
    ['E_SLURM_GRES', 'sbatch: error: Invalid Trackable RESource (TRES) specification\n'],
    ['E_SLURM_NODE_CONFIG', failed('Requested node configuration is not available')],
    ['E_SLURM_NODE_CONFIG', failed('More processors requested than permitted')],
    ['E_SLURM_NODE_CONFIG', failed('Node count specification invalid')],
    ['E_SLURM_ARRAY', failed('Invalid job array specification')],
    ['E_SLURM_RESERVATION', failed('Requested reservation is invalid')],
    [
      'E_SLURM_LIMIT',
      `sbatch: error: QOSMaxSubmitJobPerUserLimit\n${failed("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)")}`,
    ],
    [
      'E_SLURM_LIMIT',
      `sbatch: error: AssocMaxSubmitJobLimit\n${failed("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)")}`,
    ],
    ['E_SLURM_NOT_ALLOWED', failed("User's group not permitted to use this partition")],
    ['E_SLURM_NOT_ALLOWED', failed('Access/permission denied')],
    ['E_SLURM_UNREACHABLE', failed('Unable to contact slurm controller (connect failure)')],
    ['E_SLURM_UNREACHABLE', failed('Socket timed out on send/recv operation')],
    ['E_SLURM_UNREACHABLE', failed('Zero Bytes were transmitted or received')],
    [
      'E_SLURM_UNREACHABLE',
      'sbatch: error: If munged is up, restart with --num-threads=10\nsbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory\n',
    ],
    [
      'E_SLURM_OPTION',
      'sbatch: unrecognized option \'--nosuch\'\nTry "sbatch --help" for more information\n',
    ],
    ['E_SLURM_OPTION', 'sbatch: error: Invalid --signal specification\n'],
    ['E_SLURM_REFUSED', failed('Job not allowed on Tuesdays by the site')],
  ])('%s', (code, stderr) => {
    const error = refusalError(stderr, []);
    expect(error.code).toBe(code);
    for (const line of error.because)
      expect(line).not.toMatch(/^(sbatch:|error:|Batch job submission failed:)/);
  });

  test('the options at fault come with the places that set them, the named one first', () => {
    const error = refusalError('sbatch: error: Invalid --time specification\n', [
      { name: 'partition', value: 'gpu', source: 'site.yaml:3:5 slurm.defaults.partition' },
      { name: 'time', value: 'soon', source: 'model.yaml:9:3 slurm.time_limit' },
      { name: 'mem', value: '1G', source: 'hpcserve' },
    ]);
    expect(error.because).toEqual([
      'Invalid --time specification',
      '--time=soon was set by model.yaml:9:3 slurm.time_limit',
      '--partition=gpu was set by site.yaml:3:5 slurm.defaults.partition',
    ]);
    expect(error.details).toMatchObject({ retryable: false });
  });

  test('a policy of the site has the word, not the error that Slurm has for it', () => {
    const policy = 'Jobs on gh200 are for at most 20 minutes: lower --time';
    const stderr = `sbatch: error: ${policy}\nsbatch: error: Batch job submission failed: Unspecified error\n`;
    const error = refusalError(stderr, [{ name: 'time', value: '30', source: 'model.yaml:3:5' }]);
    expect(error.because).toEqual([policy, '--time=30 was set by model.yaml:3:5']);
    const mute = 'sbatch: error: Batch job submission failed: Unspecified error\n';
    expect(refusalError(mute, []).because).toEqual(['Unspecified error']);
  });

  test('a refused account comes with those there are, where none was named', () => {
    const error = refusalError(
      'sbatch: error: Invalid account or account/partition combination specified',
      [],
    );
    const enforced = { associations: true, qos: true };
    const association = { cluster: 'c', account: 'chat', qos: [], is_default: false };
    const known = withKnownAccounts(error, [], { enforced, associations: [association] });
    expect(known).toMatchObject({ code: 'E_SLURM_ACCOUNT', details: { known: ['chat'] } });
    expect(known.because.at(-1)).toBe('no account was named; yours are: chat');
    expect(known.try[0]).toContain('--account=chat');
    const none = withKnownAccounts(error, [], { enforced, associations: [] });
    expect(none.because.at(-1)).toMatch(/no account of yours/);
    // Where it cannot be asked, and where one was named, Slurm's words are all there is.
    expect(withKnownAccounts(error, [], { enforced })).toBe(error);
    const named = [{ name: 'account', value: 'x', source: '--account' }];
    expect(withKnownAccounts(error, named, { enforced, associations: [association] })).toBe(error);
  });

  test('silence is said to be silence', () => {
    expect(refusalError('', []).because).toEqual(['sbatch gave no reason']);
  });
});

describe('several QoS in one request, which Slurm takes from 24.11 on', () => {
  const permissions: Permissions = {
    enforced: { associations: true, qos: true },
    associations: [{ cluster: 'c', account: 'chat', qos: ['normal', 'long'], is_default: true }],
  };
  const asked = (value: string) => (): void =>
    checkPermissions([{ name: 'qos', value, source: 'site.yaml:5:10' }], permissions);

  test('are let through where each of them is allowed', () => {
    expect(asked('normal,long')).not.toThrow();
    expect(asked('Long')).not.toThrow();
  });

  test('are refused for the one that is not', () => {
    expect(asked('normal,lnog')).toThrow(
      expect.objectContaining({
        code: 'E_SLURM_QOS',
        message: 'you have no QoS of account chat "lnog"',
        because: ['--qos=normal,lnog was set by site.yaml:5:10', 'Slurm knows for you: normal, long'],
        try: ['did you mean "long"?'],
      }),
    );
  });
});
