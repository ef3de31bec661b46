import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Command } from 'commander';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { commandList } from '../../cli/command-list.ts';
import { complete } from '../../cli/commands/completion.ts';
import { Configuration } from '../../cli/config/configuration.ts';
import type { CliContext } from '../../cli/context.ts';
import { buildProgram } from '../../cli/program.ts';
import { sitePlaces } from '../../cli/site-places.ts';
import { readSite } from '../../control/state/site-files.ts';
import { packageRoot } from '../../host/package-root.ts';
import { fabricAbsence, fabricVersion } from '../../native/fabric/fabric.ts';
import { type Home, temporaryHome } from './support.ts';

let home: Home;
beforeEach(() => {
  home = temporaryHome();
});
afterEach(() => home.dispose());

function context(): CliContext {
  const environment = { HOME: home.folder, PATH: '/nowhere' };
  return {
    environment,
    working_folder: home.folder,
    configuration: new Configuration({ environment, working_folder: home.folder }),
  } as unknown as CliContext;
}

function all(command: Command): Command[] {
  return [command, ...command.commands.flatMap(all)];
}

describe('the command line', () => {
  it('has a description and examples for every command', async () => {
    const { program, load } = buildProgram(context());
    for (const command of program.commands) await load(command);
    for (const command of all(program)) {
      if (command.name() === '__complete') continue;
      expect(command.description(), command.name()).not.toBe('');
      let help = '';
      command.configureOutput({ writeOut: (text) => (help += text) }).outputHelp();
      expect(help, command.name()).toMatch(/Examples?:\n/);
      for (const option of command.options)
        expect(option.description, `${command.name()} ${option.flags}`).not.toBe('');
    }
  });

  it('says of a command that is not loaded what it says of one that is', async () => {
    const { program, load } = buildProgram(context());
    const before = program.helpInformation();
    for (const command of program.commands) await load(command);
    expect(program.helpInformation()).toBe(before);
    for (const command of program.commands)
      expect([command.name(), commandList[command.name()]?.options]).toEqual([
        command.name(),
        command.options.length > 0,
      ]);
    expect(before).toMatch(/^ {2}deploy \[options\] <file> {2,}Submit the deployment/m);
    expect(before).toMatch(/^ {2}keys {2,}Make, list/m);
    expect(before).not.toContain('__complete');
  });

  it.each([
    [['--version'], []],
    [['-h'], []],
    [['help'], []],
    [['--site', 'local', 'sites'], ['registerSites']],
    [['help', 'sites'], ['registerSites']],
    [['sites', '-h'], ['registerSites']],
  ])('loads what %s needs and no other command', async (argv, expected) => {
    const coverage = join(home.folder, 'coverage');
    const { code, stderr } = await home.run(argv, { env: { NODE_V8_COVERAGE: coverage } });
    expect(code, stderr).toBe(0);
    const [report = ''] = readdirSync(coverage);
    const { result } = JSON.parse(readFileSync(join(coverage, report), 'utf8')) as {
      result: { functions: { functionName: string }[] }[];
    };
    const names = result.flatMap(({ functions }) => functions.map(({ functionName }) => functionName));
    expect(names).toContain('runCommandLine');
    const registering = Object.values(commandList).map(
      ({ register }) => /register\w+/.exec(`${register}`)![0],
    );
    expect(names.filter((name) => registering.includes(name))).toEqual(expected);
  });

  it('answers wrong usage with a suggestion on stderr, nothing on stdout, and exit code 2', async () => {
    for (const [argv, suggestion] of [
      [['deplyo'], 'deploy'],
      [['status', '--wach'], '--watch'],
      [['keys', 'crate', 'x'], 'create'],
    ] as const) {
      const { code, stdout, stderr } = await home.run(argv);
      expect({ code, stdout }).toEqual({ code: 2, stdout: '' });
      expect(stderr).toMatch(/^error: .* \[E_USAGE\]/);
      expect(stderr).toContain(`did you mean "${suggestion}"?`);
    }
  });

  it('takes no option of run that would come to nothing', async () => {
    for (const [argv, said] of [
      // Such as: -- $CMD, where that is empty.
      [['--model', 'tiny', '--gpus', '4', '--'], '--model, --gpus cannot be given without a command'],
      [['--context', '4096'], '--context cannot be given without a command'],
      [
        ['--tier', 'scavenger', '--model', 'tiny', '--', 'true', '{socket}'],
        '--tier cannot be given with a command',
      ],
    ] as const) {
      const { code, stdout, stderr } = await home.run(['run', ...argv], { timeout_ms: 15_000 });
      expect({ code, stdout }, stderr).toEqual({ code: 2, stdout: '' });
      expect(stderr).toContain(`error: ${said} [E_USAGE]`);
    }
  });

  it('prints help and version on stdout with exit code 0', async () => {
    expect(await home.run(['--version'])).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/^\d+\.\d+\.\d+\n$/),
    });
    const help = await home.run(['deploy', '--help']);
    expect(help).toMatchObject({ code: 0, stderr: '' });
    expect(help.stdout).toMatch(/--detach[\s\S]*Global Options:[\s\S]*--json[\s\S]*Examples:/);
  });

  it('uses the local site on a machine without sbatch', async () => {
    const { code, stdout } = await home.run(['status', '--json']);
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({
      site: 'local',
      gateway: { state: 'not_running' },
      deployments: [],
    });
  });

  it('names file, line and the nearest key of a wrong model.yaml, as text and as JSON', async () => {
    writeFileSync(join(home.folder, 'model.yaml'), 'name: x\nmodels:\n  - name: m\n    sorce: a.gguf\n');
    const text = await home.run(['plan', 'model.yaml']);
    expect(text.code).toBe(3);
    expect(text.stderr).toMatch(/model\.yaml:4:5: unknown key "models\.0\.sorce"; did you mean "source"/);
    const json = await home.run(['plan', 'model.yaml', '--json']);
    expect(json.stdout).toBe('');
    expect(JSON.parse(json.stderr)).toMatchObject({ error: { code: 'E_CONFIG_YAML' } });
  });

  it('refuses a missing model before anything is made', async () => {
    writeFileSync(join(home.folder, 'model.yaml'), 'name: x\nmodels: [{name: m, source: ./absent.gguf}]\n');
    const { code, stderr } = await home.run(['deploy', 'model.yaml']);
    expect(code).toBe(4);
    expect(stderr).toMatch(/E_MODEL_MISSING/);
    expect(existsSync(join(home.folder, '.hpcserve'))).toBe(false);
  });

  it('plans and renders from the site config alone where Slurm cannot be asked, and says so', async () => {
    await home.run(['model', 'synth', 'toy.gguf', '--preset', 'tiny-llama']);
    writeFileSync(
      join(home.folder, 'model.yaml'),
      'name: x\nmodels: [{name: m, source: ./toy.gguf, devices: {node_kinds: [gh200]}}]\n',
    );
    const argv = ['model.yaml', '--site', 'test-cluster'];
    const rendered = await home.run(['render', ...argv]);
    expect(rendered.code, rendered.stderr).toBe(0);
    expect(rendered.stdout).toMatch(/^#!\/bin\/bash\n[\s\S]*--gres=gpu:gh200:1/);
    expect(rendered.stderr).toMatch(
      /^warning: Slurm was not asked; .* site config alone \(.*sinfo was not found\)\n$/,
    );
    const planned = await home.run(['plan', ...argv, '--json']);
    expect(planned.code, planned.stderr).toBe(0);
    expect(JSON.parse(planned.stdout)).toMatchObject({ offline: true, estimates: [] });
    expect((await home.run(['plan', ...argv, '--offline'])).stderr).toMatch(/--offline was given/);
    const deployed = await home.run(['deploy', ...argv]);
    expect(deployed.code).toBe(12);
    expect(deployed.stderr).toMatch(/E_SLURM_COMMAND_MISSING/);
  });

  it('goes to the login node of a site over ssh, and says so where that cannot be reached', async () => {
    const site = 'name: far\nkind: slurm\nslurm:\n  ssh: {host: 127.0.0.1, port: 1}\n';
    writeFileSync(join(home.folder, 'far.yaml'), site);
    const { code, stderr } = await home.run(['status', '--site', './far.yaml']);
    expect(code).toBe(7);
    expect(stderr).toMatch(/127\.0\.0\.1, port 1, cannot be reached by ssh \[E_SSH_CONNECT\]/);
    const local = await home.run(['connect']);
    expect(local.code).toBe(3);
    expect(local.stderr).toMatch(/local is not reached over ssh/);
  });

  it('knows no deployment, no key and no gateway, each with its own exit code', async () => {
    expect((await home.run(['stop', 'absent'])).code).toBe(9);
    expect((await home.run(['logs', 'absent'])).code).toBe(9);
    expect((await home.run(['config', 'explain', 'absent'])).code).toBe(9);
    expect((await home.run(['models'])).code).toBe(7);
    expect((await home.run(['models', '--url', 'http://127.0.0.1:9/v1'])).code).toBe(9);
    expect(
      (await home.run(['models', '--url', 'http://127.0.0.1:9/v1'], { env: { HPCSERVE_API_KEY: 'hsk-x' } }))
        .code,
    ).toBe(7);
    expect((await home.run(['--site', 'nowhere', 'status'])).code).toBe(3);
  });

  it('asks nothing where there is no terminal', async () => {
    expect((await home.run(['stop'])).code).toBe(2);
    expect((await home.run(['stop', '--all'])).code).toBe(0);
    expect((await home.run(['chat', 'm'])).code).toBe(2);
  });

  it('shows a stack only when debugging', async () => {
    const quiet = await home.run(['config', 'explain', 'x']);
    expect(quiet.stderr).not.toMatch(/\n\s+at /);
    const loud = await home.run(['config', 'explain', 'x'], { env: { HPCSERVE_DEBUG: '1' } });
    expect(loud.stderr).toMatch(/\n\s+at /);
  });

  it('explains a setting down to the place that set it', async () => {
    const { stdout } = await home.run(['config', 'explain', 'site', '--site', 'lumi', '--json'], {
      env: { HPCSERVE_SITE: 'perlmutter' },
    });
    const explained = JSON.parse(stdout);
    expect(explained).toMatchObject({ key: 'site', value: 'lumi' });
    expect(explained.sources.slice(0, 2)).toMatchObject([
      { place: '--site', value: 'lumi' },
      { place: 'HPCSERVE_SITE', value: 'perlmutter' },
    ]);
  });

  it('lists sites with what their configs say of them, and what is wrong with one', async () => {
    const own = join(home.folder, '.config/hpcserve/sites');
    mkdirSync(own, { recursive: true });
    writeFileSync(join(own, 'broken.yaml'), 'name: broken\nkind: none\n');
    writeFileSync(join(own, 'local.yaml'), readFileSync(join(packageRoot, 'site-configs/local.yaml')));
    const { sites } = JSON.parse((await home.run(['sites', '--json'])).stdout) as {
      sites: { name: string; path: string; origin: string; hidden?: true; description: string }[];
    };
    expect(sites[0]).toMatchObject({ name: 'broken', description: expect.stringMatching(/^unusable: /) });
    expect(sites.filter(({ name }) => name === 'local').map(({ hidden }) => hidden)).toEqual([
      undefined,
      true,
    ]);
    const places = { ...sitePlaces(context()), working_folder: home.folder };
    const shipped = sites.filter(({ origin }) => origin === 'built in');
    expect(shipped.length).toBeGreaterThan(5);
    for (const { path, description } of shipped)
      expect(readSite(path, places, undefined).site.description).toBe(description);
  });

  it('writes a site config once, and doctor passes on it', async () => {
    const first = await home.run(['init']);
    expect(first).toMatchObject({
      code: 0,
      stdout: `${join(home.folder, '.config/hpcserve/sites/local.yaml')}\n`,
    });
    expect((await home.run(['init'])).code).toBe(10);
    expect((await home.run(['init', '--force'])).code).toBe(0);
    const doctor = await home.run(['doctor', '--json']);
    expect(doctor.code, doctor.stdout).toBe(0);
    expect(JSON.parse(doctor.stdout)).toMatchObject({ passed: true });
  });

  it('says on a site whose network is private whether KV may go by libfabric', async () => {
    const config = join(home.folder, 'slurm.yaml');
    const shipped = readFileSync(join(packageRoot, 'site-configs/generic-slurm.yaml'), 'utf8');
    writeFileSync(config, `${shipped}network:\n  private_fabric: true\n`);
    const { stdout } = await home.run(['doctor', '--site', config, '--json']);
    const { checks } = JSON.parse(stdout) as { checks: { check: string; status: string; found: string }[] };
    const absence = fabricAbsence();
    expect(checks.find(({ check }) => check === 'libfabric')).toMatchObject(
      absence === undefined
        ? { status: 'PASSED', found: expect.stringContaining(fabricVersion()) }
        : { status: 'SKIPPED', found: expect.stringContaining(absence) },
    );
  });

  it('fails doctor with exit code 13 and the command that mends it', async () => {
    await home.run(['doctor']);
    const { chmodSync } = await import('node:fs');
    chmodSync(join(home.folder, '.hpcserve/local'), 0o755);
    const { code, stdout } = await home.run(['doctor']);
    expect(code).toBe(13);
    expect(stdout).toMatch(/FAILED {3}state folder is private.*\n\s+try: chmod 700 /);
  });
});

describe('completion', () => {
  const words = async (...typed: string[]): Promise<string[]> =>
    complete(buildProgram(context()), context(), typed);

  it('offers commands, options, choices and sites', async () => {
    expect(await words('st')).toEqual(['status', 'stop']);
    expect(await words('keys', 'r')).toEqual(['revoke', 'rotate']);
    expect(await words('deploy', '--st')).toEqual(['--state-dir', '--stop-first']);
    expect(await words('usage', '--by', 'd')).toEqual(['day', 'deployment', 'device']);
    expect(await words('status', '--site', 'lo')).toEqual(['local']);
    expect(await words('completion', '')).toEqual(['bash', 'fish', 'zsh']);
  });

  it('hands out scripts that their shells can read', async () => {
    const { spawnSync } = await import('node:child_process');
    const { stdout } = await home.run(['completion', 'bash']);
    expect(spawnSync('bash', ['-n'], { input: stdout }).status).toBe(0);
  });
});
