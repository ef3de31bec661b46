/** Engines behind a prefix: what is bound for which runtime, and what is not seen there is found before they start. */
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { EngineContainer } from '../../../agent/node/engine-container.ts';
import { fixtureUnit, Site, unitOf } from '../support.ts';

const silent = pino({ level: 'silent' });
const never = new AbortController().signal;
const unit = unitOf({ name: 'm' }, { model_path: '/models/x/m.gguf' });
const containerOf = (...prefix: string[]): EngineContainer => new EngineContainer(prefix, unit, '/run/h');

describe('what a runtime is told', () => {
  it('apptainer, by variables, beside what was there', () => {
    const container = containerOf('apptainer', 'exec', '--nv', '/images/vllm.sif');
    expect(container.prefix).toEqual(['apptainer', 'exec', '--nv', '/images/vllm.sif']);
    expect(container.environment({ APPTAINER_BIND: '/opt/cray' })).toEqual({
      APPTAINER_BIND: '/opt/cray,/run/h,/models/x',
      SINGULARITY_BIND: '/run/h,/models/x',
    });
    const argv = [...container.prefix, 'vllm', 'serve'];
    expect(container.started(argv, ['VLLM_API_KEY'])).toEqual(argv);
  });

  it('podman and its like, by options behind "run"; variables by their names, never their values', () => {
    const container = containerOf('env', 'A=run', '/usr/bin/podman-hpc', 'run', '--rm', 'vllm:1');
    const bound = ['--volume=/run/h:/run/h', '--volume=/models/x:/models/x'];
    expect(container.prefix).toEqual([
      ...['env', 'A=run', '/usr/bin/podman-hpc', 'run', ...bound, '--rm', 'vllm:1'],
    ]);
    expect(container.started([...container.prefix, 'vllm'], ['VLLM_API_KEY'])).toEqual([
      ...[
        'env',
        'A=run',
        '/usr/bin/podman-hpc',
        'run',
        `--name=${container.detached!.name}`,
        '--env=VLLM_API_KEY',
        ...bound,
        '--rm',
        'vllm:1',
        'vllm',
      ],
    ]);
    expect(container.environment({})).toEqual({});
  });

  it('enroot, by options behind "start"', () => {
    const container = containerOf('enroot', 'start', 'vllm');
    const binds = ['--mount=/run/h:/run/h', '--mount=/models/x:/models/x'];
    expect(container.prefix).toEqual(['enroot', 'start', ...binds, 'vllm']);
    expect(container.started(container.prefix, ['K'])).toEqual([
      ...['enroot', 'start', '--env', 'K', ...binds, 'vllm'],
    ]);
  });

  it('the folder to run in, where it would run in another', () => {
    const rest = ['tgi', '--model-id', 'm'];
    const podman = containerOf('podman', 'run', 'tgi:3');
    expect(podman.started([...podman.prefix, ...rest], [], '/run/h/models')).toEqual([
      ...['podman', 'run', `--name=${podman.detached!.name}`, '--workdir=/run/h/models'],
      ...['--volume=/run/h:/run/h', '--volume=/models/x:/models/x', 'tgi:3', ...rest],
    ]);
    const enroot = containerOf('enroot', 'start', 'tgi');
    const started = enroot.started([...enroot.prefix, ...rest], ['K'], '/');
    const within = started.slice(started.indexOf('sh'));
    expect(within.slice(-rest.length)).toEqual(rest);
    const [program, ...args] = [...within.slice(0, -rest.length), 'pwd'];
    expect(spawnSync(program!, args, { encoding: 'utf8', cwd: tmpdir() }).stdout).toBe('/\n');
    const apptainer = containerOf('apptainer', 'exec', 'tgi.sif');
    expect(apptainer.started([...apptainer.prefix, ...rest], [], '/')).toEqual([
      ...apptainer.prefix,
      ...rest,
    ]);
  });

  it('no prefix, or one of another kind: nothing', () => {
    for (const prefix of [[], ['nice'], ['conda', 'run', '-n', 'podman-free', 'x']]) {
      const container = containerOf(...prefix);
      expect(container.prefix).toEqual(prefix);
      expect(container.environment({})).toEqual({});
      expect(container.started([...prefix, 'a'], ['K'])).toEqual([...prefix, 'a']);
    }
  });
});

/** A container of the plainest kind: a mount namespace in which these folders are empty ones. */
const hiding = (...folders: string[]): string[] => [
  ...['unshare', '--mount', 'sh', '-c'],
  `${folders.map((folder) => `mount -t tmpfs none '${folder}' && `).join('')}exec "$@"`,
  'sh',
];
const permitted = spawnSync('unshare', ['--mount', 'true']).status === 0;
const lacking = permitted ? '' : ' [skipped: no mount namespaces for this user]';

describe.skipIf(!permitted)(`what is not seen behind a prefix${lacking}`, () => {
  let base: string;
  const inBase = (...path: string[]): string => join(base, ...path);
  beforeAll(() => {
    base = mkdtempSync(join(tmpdir(), 'hpcserve-container-'));
    for (const name of ['run', 'models']) mkdirSync(inBase(name));
    writeFileSync(inBase('models', 'm.gguf'), '');
  });
  afterAll(() => rmSync(base, { recursive: true, force: true }));
  const check = (prefix: string[], model: Partial<Parameters<typeof unitOf>[0]> = {}): Promise<void> => {
    mkdirSync(inBase('run', 'u0'), { recursive: true });
    const asked = unitOf({ name: 'm', ...model }, { model_path: inBase('models', 'm.gguf') });
    return new EngineContainer(prefix, asked, inBase('run', 'u0')).check(process.env, never, silent);
  };

  it('is named, with why it is needed and how it is bound', async () => {
    await expect(check(['nice'])).resolves.toBeUndefined();
    await expect(check(hiding(inBase('run')))).rejects.toMatchObject({
      code: 'E_AGENT_ENGINE_PATHS',
      because: [expect.stringContaining('unshare --mount'), expect.stringContaining('holds the socket')],
      try: [expect.stringContaining(`--volume=${inBase('run', 'u0')}:`)],
    });
    mkdirSync(inBase('adapters'));
    writeFileSync(inBase('adapters', 'sql'), '');
    const engine_args = ['--lora-modules', `sql=${inBase('adapters', 'sql')}`];
    await expect(check(hiding(inBase('adapters')), { engine_args })).rejects.toMatchObject({
      message: expect.stringContaining(inBase('adapters', 'sql')),
      because: [expect.anything(), 'm needs it'],
    });
  });

  it('is no reason to wait, and none to fail where it cannot be tried', async () => {
    await expect(check(['/no/such/apptainer', 'exec', 'x.sif'])).resolves.toBeUndefined();
    await using site = await Site.open();
    // Its folder is there for the agent, and another one for the engine.
    const agent = await site.start([fixtureUnit('m')], { engine_prefix: hiding(join(site.folder, 'run')) });
    // Within the time that this test has: an engine would be waited for 60 times as long.
    expect((await agent.ended).code).not.toBe(0);
    const failed = (await agent.state())!.sessions.find((session) => session.unit);
    expect(failed!.error).toMatchObject({ code: 'E_AGENT_ENGINE_PATHS' });
  });
});
