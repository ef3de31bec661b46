/** The command line in few files, and which of the two programs `hpcserve` runs. */
import { execFileSync, spawnSync } from 'node:child_process';
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';

describe('the bundle', () => {
  // Inside the tree: it finds its templates, its site configs and its packages above it.
  const bundle = join(packageRoot, 'build', `bundle-test-${process.pid}`);
  const home = mkdtempSync(join(tmpdir(), 'hpcserve-bundle-'));
  const environment = { PATH: '/nowhere', HOME: home };

  function run(options: string[], ...words: string[]): { status: number | null; out: string; err: string } {
    const argv = [...options, join(bundle, 'main.js'), ...words];
    const ended = spawnSync(process.execPath, argv, { cwd: home, env: environment, encoding: 'utf8' });
    return { status: ended.status, out: ended.stdout, err: ended.stderr };
  }

  beforeAll(() => {
    mkdirSync(bundle, { recursive: true });
    writeFileSync(join(bundle, 'of-an-earlier-one.js'), '');
    execFileSync(process.execPath, [join(packageRoot, 'dist/.ci/bundle.js'), bundle], { stdio: 'inherit' });
  });
  afterAll(() => {
    for (const folder of [bundle, home]) rmSync(folder, { recursive: true, force: true });
  });

  it('loads every command', () => {
    const compiled = join(packageRoot, 'dist/cli/main.js');
    // Completion of any word knows the words of all commands.
    const words = ['__complete', '--', ''];
    const wanted = execFileSync(process.execPath, [compiled, ...words], {
      env: environment,
      encoding: 'utf8',
    });
    expect(run([], ...words)).toEqual({ status: 0, out: wanted, err: '' });
    expect(wanted.split('\n')).toEqual(expect.arrayContaining(['deploy', 'status', 'connect']));
  });

  it('finds what lies beside the program: site configs, and threads to start', () => {
    const status = run([], 'status', '--site', 'local');
    expect(status.err).toBe('');
    expect(status.out).toContain('no deployments');
    const synth = ['model', 'synth', 'toy.gguf', '--preset', 'tiny-llama', '--threads', '1'];
    expect(run([], ...synth)).toMatchObject({ status: 0, out: `${join(home, 'toy.gguf')}\n` });
  });

  it('reads few files for a status', () => {
    const hook =
      'export const load = (url, context, next) => (process._rawDebug("LOAD", url), next(url, context));';
    const counter = join(home, 'count.mjs');
    writeFileSync(
      counter,
      `import { register } from 'node:module';\nregister('data:text/javascript,${encodeURIComponent(hook)}');\n`,
    );
    const { err } = run(['--import', counter], 'status', '--site', 'local');
    const loaded = err.split('\n').filter((line) => line.startsWith('LOAD file:'));
    expect(loaded.length).toBeGreaterThan(2);
    // Parts of the bundle, where sources would be some hundreds.
    expect(loaded.length).toBeLessThan(80);
    expect(loaded.filter((line) => line.includes('/node_modules/'))).toEqual([]);
  });

  it('has the lines of the sources in its stack traces', () => {
    const trace = spawnSync(
      process.execPath,
      ['--enable-source-maps', join(bundle, 'main.js'), 'plan', 'none.yaml', '--site', 'local'],
      { cwd: home, env: { ...environment, HPCSERVE_DEBUG: '1' }, encoding: 'utf8' },
    );
    expect(trace.stderr).toMatch(
      new RegExp(`at .*${packageRoot}/(cli|control|spec)/[\\w/-]+\\.ts:\\d+:\\d+`),
    );
  });

  it('is made whole or not at all', () => {
    const beside = readdirSync(join(bundle, '..')).filter((name) =>
      name.startsWith(`bundle-test-${process.pid}.`),
    );
    expect(beside).toEqual([]);
    expect(readdirSync(bundle)).not.toContain('of-an-earlier-one.js');
  });

  it.each<[string, string | undefined]>([
    ['there is nothing to make it of', undefined],
    ['a part of what it is made of is missing', "import './commands/none.js';\n"],
  ])('stays as it was where %s', (_, main) => {
    const folder = mkdtempSync(join(tmpdir(), 'hpcserve-unbuilt-'));
    try {
      for (const file of ['package.json', 'dist/.ci/bundle.js', 'dist/host/package-root.js'])
        cpSync(join(packageRoot, file), join(folder, file));
      symlinkSync(join(packageRoot, 'node_modules'), join(folder, 'node_modules'));
      if (main !== undefined) {
        mkdirSync(join(folder, 'dist/cli'));
        writeFileSync(join(folder, 'dist/cli/main.js'), main);
        writeFileSync(
          join(folder, 'dist/cli/main.js.map'),
          '{"version":3,"sources":[],"names":[],"mappings":""}',
        );
      }
      const place = join(folder, 'made');
      cpSync(bundle, join(place, 'bundle'), { recursive: true });
      const before = filesIn(place);
      const failed = spawnSync(
        process.execPath,
        [join(folder, 'dist/.ci/bundle.js'), join(place, 'bundle')],
        { encoding: 'utf8' },
      );
      expect(failed.status, failed.stdout).toBe(1);
      expect(failed.stderr).toContain(main === undefined ? 'cli/main.js' : './commands/none.js');
      expect(filesIn(place)).toEqual(before);
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });
});

/** Folders, and files with their content. */
function filesIn(folder: string): Map<string, string> {
  const paths = readdirSync(folder, { recursive: true, encoding: 'utf8' }).sort();
  return new Map(
    paths.map((path) => {
      const file = join(folder, path);
      return [path, statSync(file).isDirectory() ? '' : readFileSync(file, 'utf8')];
    }),
  );
}

describe('hpcserve', () => {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-installed-'));
  const programs = ['dist/bundle/main.js', 'dist/cli/main.js', 'dist/.tsbuildinfo'];
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  /** What runs when files were written at these seconds; without a second a file is missing. */
  function chosen(seconds: Partial<Record<(typeof programs)[number], number>>): string {
    rmSync(join(folder, 'dist'), { recursive: true, force: true });
    for (const room of ['cli', 'dist/bundle', 'dist/cli']) mkdirSync(join(folder, room), { recursive: true });
    cpSync(join(packageRoot, 'cli/hpcserve.mjs'), join(folder, 'cli/hpcserve.mjs'));
    writeFileSync(join(folder, 'package.json'), '{"type":"module"}');
    for (const [path, second] of Object.entries(seconds)) {
      writeFileSync(join(folder, path), `console.log(${JSON.stringify(path)});\n`);
      utimesSync(join(folder, path), second!, second!);
    }
    const { stdout, stderr } = spawnSync(process.execPath, [join(folder, 'cli/hpcserve.mjs')], {
      encoding: 'utf8',
    });
    return (stdout + stderr).trim();
  }

  it('runs the bundle where it is as new as what was compiled', () => {
    const [bundle, compiled, stamp] = programs as [string, string, string];
    expect(chosen({ [compiled]: 10, [stamp]: 11, [bundle]: 12 })).toBe(bundle);
    expect(chosen({ [bundle]: 10 })).toBe(bundle);
  });

  it('runs what was compiled where the bundle is older or missing', () => {
    const [bundle, compiled, stamp] = programs as [string, string, string];
    expect(chosen({ [bundle]: 10, [compiled]: 9, [stamp]: 11 })).toBe(compiled);
    expect(chosen({ [bundle]: 10, [compiled]: 11 })).toBe(compiled);
    expect(chosen({ [compiled]: 11 })).toBe(compiled);
  });

  it('keeps what Node compiled among the files of the user, and nothing in /tmp', () => {
    chosen({ 'dist/bundle/main.js': 10 });
    const [home, temporary] = [join(folder, 'home'), join(folder, 'tmp')];
    for (const path of [home, temporary]) mkdirSync(path);
    const env = { HOME: home, TMPDIR: temporary };
    expect(spawnSync(process.execPath, [join(folder, 'cli/hpcserve.mjs')], { env }).status).toBe(0);
    expect(readdirSync(temporary)).toEqual([]);
    // Node 20 keeps nothing.
    if (Number(process.versions.node.split('.')[0]) < 22) return;
    const kept = join(home, '.cache/hpcserve/compiled');
    expect(readdirSync(kept)).toHaveLength(1);
    expect(statSync(kept).mode & 0o777).toBe(0o700);
  });

  it('says what to do where nothing was built', () => {
    expect(chosen({})).toBe('error: hpcserve is not built here\n  try: npm run build');
  });
});
