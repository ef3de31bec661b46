/**
 * Commands over several sites, as they are typed: sites of this machine, each with its state, its gateway and its
 * keeper.
 */
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import { siteQuestionSchema } from '../../spec/site-question.ts';
import { type Home, type Outcome, temporaryHome } from '../cli/support.ts';
import { freePort } from '../free-port.ts';

let home: Home;
let mesh_port: number;

const device = {
  kind: 'cpu',
  model: 'CPU',
  count: 1,
  memory_gb: 2,
  cores: 1,
  emulated: 'cpu',
  emulated_step_ms: 40,
};

/** @param paced nodes of a declared speed, so that several answers at once take a while on any machine */
function writeSite(name: string, more: string, paced?: { tier: string; count: number }): void {
  let shipped = readFileSync(join(packageRoot, 'site-configs/local.yaml'), 'utf8');
  if (paced)
    shipped = shipped.replace(
      'node_kinds:',
      `node_kinds:\n  - ${JSON.stringify({ name: 'paced', ...paced, cpus: 1, memory_gb: 4, devices: [device] })}`,
    );
  const folder = join(home.folder, '.config/hpcserve/sites');
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, `${name}.yaml`), `${shipped.replace('name: local', `name: ${name}`)}${more}`);
}

function meshFolder(name: string): string {
  const folder = join(home.folder, '.hpcserve', name, 'mesh');
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  return folder;
}

function writeModel(more: object = {}, model: object = {}): void {
  const toy = {
    name: 'toy',
    source: './toy.gguf',
    replicas: 2,
    cpu_threads: 1,
    context_tokens: 512,
    devices: { node_kinds: ['one/this-machine', 'two/this-machine'] },
    ...model,
  };
  writeFileSync(join(home.folder, 'model.yaml'), JSON.stringify({ name: 'demo', models: [toy], ...more }));
}

beforeAll(async () => {
  home = temporaryHome();
  mesh_port = await freePort();
  for (const [file, seed] of [
    ['toy.gguf', '1'],
    ['other.gguf', '2'],
  ] as const) {
    const preset = file === 'toy.gguf' ? 'tiny-llama' : 'tiny-qwen2';
    const made = await home.run(['model', 'synth', file, '--preset', preset, '--seed', seed]);
    expect(made.code, made.stderr).toBe(0);
  }
  const alias = (file: string): string => `model_aliases:\n  here: ${join(home.folder, file)}\n`;
  const keeper = 'keeper:\n  sites_silent_s: 10\n';
  // What is preemptible counts as dearer.
  writeSite('one', `mesh:\n  port: ${mesh_port}\n${alias('toy.gguf')}${keeper}`, {
    tier: 'scavenger',
    count: 2,
  });
  writeSite('two', `mesh:\n  bootstrap: ["127.0.0.1:${mesh_port}"]\n${alias('other.gguf')}${keeper}`, {
    tier: 'stable',
    count: 1,
  });
  for (const name of ['one', 'two'])
    writeFileSync(join(meshFolder(name), 'network.key'), new Uint8Array(32).fill(7), { mode: 0o600 });
}, 60_000);
afterAll(async () => {
  await home.run(['stop', '--all', '--yes', '--sites', 'one,two']);
  home.dispose();
}, 60_000);

function deploy(...words: string[]): Promise<Outcome> {
  return home.run(['deploy', '--yes', 'model.yaml', '--sites', 'one,two', '--timeout', '60s', ...words], {
    timeout_ms: 100_000,
  });
}

interface ShownDeployment {
  phase: string;
  replicas_serving: number;
  launches: { job_id: string; phase: string; units: { unit: string }[] }[];
  shared_with?: string[];
}

/** The deployment at each site, by site; undefined where a site knows nothing of it. */
async function standing(): Promise<Record<string, ShownDeployment | undefined>> {
  const { stdout } = await home.run(['status', 'demo', '--sites', 'one,two', '--json']);
  const { sites } = JSON.parse(stdout) as {
    sites: { site: string; status?: { deployments: ShownDeployment[] } }[];
  };
  return Object.fromEntries(sites.map(({ site, status }) => [site, status?.deployments[0]]));
}

const jobsAt = (deployment: ShownDeployment | undefined): string[] =>
  deployment?.launches.filter(({ phase }) => phase !== 'ended').map(({ job_id }) => job_id) ?? [];

describe('what is asked for wrongly', () => {
  it.each([
    [
      '--out',
      ['plan', 'model.yaml', '--sites', 'one,two', '--out', 'x'],
      2,
      /--out does not go with several/,
    ],
    ['--plan', ['deploy', 'model.yaml', '--sites', 'one,two', '--plan', 'x'], 2, /--plan does not go with/],
    ['--site', ['plan', 'model.yaml', '--sites', 'one,two', '--site', 'one'], 2, /contradict each other/],
    [
      'a site that is not there',
      ['plan', 'model.yaml', '--sites', 'one,tow'],
      3,
      /"tow"[\s\S]*did you mean "two"/,
    ],
    ['a site named twice', ['status', '--sites', 'one,one'], 2, /one is named twice/],
    ['no name', ['status', '--sites', 'one,'], 2, /names with commas between/],
    ['--question with --sites', ['plan', 'model.yaml', '--question', '--sites', 'one'], 2, /makes no plan/],
    ['a name nobody knows', ['stop', 'nobody', '--sites', 'one,two'], 9, /there is no deployment "nobody"/],
  ])('is refused: %s', async (_what, argv, code, words) => {
    writeModel();
    const outcome = await home.run(argv);
    expect(outcome.stderr).toMatch(words);
    expect(outcome.code).toBe(code);
  });

  it.each([
    ['both keys', { site: 'one', sites: ['one', 'two'] }, {}, /site and sites contradict each other/, 3],
    [
      'a share of another',
      { share: { of: 'x', sites: [{ site: 'one', models: [] }] } },
      {},
      /one site's share/,
      3,
    ],
    ['a kind nobody has', {}, { devices: { node_kinds: ['h100'] } }, /no site has a node kind "h100"/, 3],
    ['too much', {}, { kv_tokens: 1e12 }, /demo cannot be placed on one, two/, 5],
    [
      'a model that is another there',
      {},
      { source: 'alias:here' },
      /toy is not the same model on one and two[\s\S]*architecture: "llama" on one, "qwen2" on two/,
      5,
    ],
    ['a model that is nowhere', {}, { source: './none.gguf' }, /^error: (one|two): .*none\.gguf/, 4],
  ])('is refused: %s in model.yaml', async (_what, more, model, words, code) => {
    writeModel(more, model);
    const outcome = await deploy();
    expect(outcome.stderr).toMatch(words);
    expect(outcome.code).toBe(code);
    expect(Object.values(await standing())).toEqual([undefined, undefined]);
  });

  it('is refused by commands that work on one site, where the file is for several', async () => {
    writeModel({ sites: ['one', 'two'] });
    const rendered = await home.run(['render', 'model.yaml']);
    expect(rendered.code).toBe(3);
    expect(rendered.stderr).toMatch(
      /demo is for several sites \(one, two\)[\s\S]*try: name one of them: --site one/,
    );
    // --site is stronger, as it is than site.
    const planned = await home.run(['plan', 'model.yaml', '--site', 'one']);
    expect(planned.code).toBe(3);
    expect(planned.stdout).toBe('');
    writeModel({ sites: ['one', 'two'] }, { devices: {} });
    const alone = await home.run(['plan', 'model.yaml', '--site', 'one']);
    expect(alone.stdout, alone.stderr).toMatch(/^demo on one$/m);
    const said = await home.run(['plan', 'model.yaml'], { env: { HPCSERVE_SITE: 'two' } });
    expect(said.stdout, said.stderr).toMatch(/^demo on two$/m);
    expect(said.stderr).toMatch(/sites of model.yaml \(one, two\) is not used: HPCSERVE_SITE says two/);
  });

  it('is refused where a site is of another mesh, without a word of the key', async () => {
    writeModel();
    const file = join(meshFolder('two'), 'network.key');
    writeFileSync(file, new Uint8Array(32).fill(8), { mode: 0o600 });
    const outcome = await deploy();
    writeFileSync(file, new Uint8Array(32).fill(7), { mode: 0o600 });
    expect(outcome.code).toBe(7);
    expect(outcome.stderr).toMatch(/the network.key of two is another than that of one/);
    const { stdout } = await home.run(['plan', 'model.yaml', '--question', '--site', 'two']);
    const answer: unknown = JSON.parse(stdout);
    const { mesh } = siteQuestionSchema.parse(answer);
    expect(siteQuestionSchema.parse(answer)).toEqual(answer);
    expect(mesh).toMatchObject({ bootstrap: [`127.0.0.1:${mesh_port}`], gossip: true });
    expect(stdout).not.toContain('07'.repeat(32));
  });
});

describe('a deployment over sites of this machine', () => {
  it('is shown before anything is done', async () => {
    writeModel({ sites: ['one', 'two'] });
    const planned = await home.run(['plan', 'model.yaml', '--explain', '--json']);
    expect(planned.code, planned.stderr).toBe(0);
    expect(JSON.parse(planned.stdout)).toMatchObject({
      site: 'one, two',
      launches: [{ node_kind: 'one/this-machine' }, { node_kind: 'two/this-machine' }],
      search: { status: 'optimal' },
      shares: [
        { site: 'one', models: [{ name: 'toy', replicas: 1, request_share: 0.5 }] },
        { site: 'two', models: [{ name: 'toy', replicas: 1, request_share: 0.5 }] },
      ],
      mesh_warnings: [],
    });
    const dry = await deploy('--dry-run');
    expect(dry.code, dry.stderr).toBe(0);
    expect(dry.stdout).toMatch(/one: 1 replica of toy\ntwo: 1 replica of toy/);
    expect(Object.values(await standing())).toEqual([undefined, undefined]);
  });

  it('goes on where it stopped when one site refused: what stands is left as it is', async () => {
    writeModel();
    // A file where the gateway's folder would be made: the second site cannot start one.
    const obstacle = join(home.folder, '.hpcserve/two/gateway');
    writeFileSync(obstacle, '');
    const partly = await deploy();
    expect(partly.code, partly.stderr).toBe(8);
    expect(partly.stderr).toMatch(
      /demo does not serve on 1 of 2 sites \[E_SITES_PARTLY\]\n {2}because: two: /,
    );
    expect(partly.stderr).toMatch(/because: one: serves, and goes on at http/);
    expect(partly.stderr).toMatch(/run the same command again[\s\S]*hpcserve stop demo --sites one,two/);
    const before = await standing();
    expect(before.one).toMatchObject({ phase: 'serving', shared_with: ['one', 'two'] });
    expect(jobsAt(before.two)).toEqual([]);

    rmSync(obstacle);
    const again = await deploy();
    expect(again.code, again.stderr).toBe(0);
    expect(again.stderr).toMatch(/divided like this before/);
    const after = await standing();
    expect(jobsAt(after.one)).toEqual(jobsAt(before.one));
    expect(after.two).toMatchObject({ phase: 'serving', launches: [{ units: [{ unit: 'toy-0' }] }] });
    const planned = await home.run(['plan', 'model.yaml', '--sites', 'one,two']);
    expect(planned.stderr).toMatch(/demo is deployed and nothing has changed since/);
    const fewer = await home.run(['deploy', '--yes', 'model.yaml', '--sites', 'one', '--dry-run']);
    expect(fewer.stderr).toMatch(/two had a share of demo too and is not named now/);
    expect(fewer.stdout).toMatch(/^one: 2 replicas of toy$/m);
  }, 180_000);

  it('is divided anew when the file changes; a site that has nothing of it any more ends its share', async () => {
    const before = await standing();
    writeModel({}, { replicas: 1, devices: { node_kinds: ['one/this-machine'] } });
    const changed = await deploy();
    expect(changed.code, changed.stderr).toBe(0);
    expect(changed.stdout).toMatch(/one: 1 replica of toy\n +two: nothing/);
    const after = await standing();
    // The same replica on the same nodes: it goes on.
    expect(jobsAt(after.one)).toEqual(jobsAt(before.one));
    expect(after.two).toMatchObject({ phase: 'stopped' });
    expect(jobsAt(after.two)).toEqual([]);
  }, 120_000);

  it('is told where one of its shares is stopped by itself, and all are with --sites', async () => {
    writeModel();
    const deployed = await deploy('--json', '--detach');
    expect(deployed.code, deployed.stderr).toBe(0);
    const lines = deployed.stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as Record<string, unknown>);
    expect(lines.at(-1)).toMatchObject({ deployment: 'demo', site: 'one', serving: false });
    expect(new Set(lines.slice(0, -1).map(({ site }) => site))).toEqual(new Set(['one', 'two']));
    const one = await home.run(['stop', 'demo', '--site', 'one']);
    expect(one.stderr).toMatch(/those of two go on: hpcserve stop demo --sites two/);
    const all = await home.run(['stop', 'demo', '--sites', 'one,two']);
    expect(all.code, all.stderr).toBe(0);
    expect(Object.values(await standing()).flatMap(jobsAt)).toEqual([]);
  }, 120_000);
});

describe('a model that follows demand over sites of this machine', () => {
  /** Replicas that serve at each site, and how the deployment stands there. */
  async function replicas(): Promise<string> {
    const { one, two } = await standing();
    return `${one?.replicas_serving}+${two?.replicas_serving}`;
  }
  const phases = async (): Promise<string[]> =>
    Object.values(await standing()).map((each) => each?.phase ?? 'none');

  it('gets replicas where they are cheaper, loses none to a silent site, sleeps and wakes everywhere', async () => {
    const scaling = { min: 0, max: 2, window_s: 5 };
    const paced = {
      devices: { node_kinds: ['one/paced', 'two/paced'] },
      max_sequences: 2,
      batch_invariant: true,
    };
    writeModel({}, { replicas: 1, scaling, ...paced });
    const planned = await home.run(['plan', 'model.yaml', '--sites', 'one,two']);
    expect(planned.stdout, planned.stderr).toMatch(
      /^toy follows demand, 0 to 2 replicas over all sites; what a replica costs: two\/paced \([\d.]+\), one\/paced \([\d.]+\)$/m,
    );
    const deployed = await deploy('--json');
    expect(deployed.code, deployed.stderr).toBe(0);
    const { url, key } = JSON.parse(deployed.stdout.trim().split('\n').at(-1)!) as {
      url: string;
      key: string;
    };
    expect(await replicas()).toBe('1+0');

    const answers = new Set<string>();
    let enough = false;
    const client = async (): Promise<void> => {
      do answers.add(await ask(url, key, 100));
      while (!enough);
    };
    const load = Promise.all(Array.from({ length: 4 }, client));
    await expect.poll(replicas, { timeout: 60_000 }).toBe('1+1');

    // The keeper of the other site is heard no more; what runs there goes on, and is not counted on.
    const status = await home.run(['status', '--site', 'two', '--json']);
    const { pid } = (JSON.parse(status.stdout) as { keeper: { pid: number } }).keeper;
    process.kill(pid, 'SIGSTOP');
    try {
      await expect.poll(replicas, { timeout: 60_000 }).toBe('2+1');
      const told = await home.run(['status', 'demo', '--site', 'one']);
      expect(told.stdout).toMatch(/two has not been heard for \d+ s: its part is the other sites'/);
    } finally {
      process.kill(pid, 'SIGCONT');
    }
    await expect.poll(replicas, { timeout: 60_000 }).toBe('1+1');
    const back = await home.run(['status', 'demo', '--site', 'one']);
    expect(back.stdout).toMatch(
      /toy follows demand over all sites, 0 to 2 replicas together: here 1 .*; two 1 /,
    );
    enough = true;
    await load;
    expect(answers.size).toBe(1);

    await expect.poll(phases, { timeout: 100_000 }).toEqual(['asleep', 'asleep']);
    // A request to the gateway of either site wakes it where it is cheaper.
    const woken = await home.run(['chat', 'toy', 'Hello', '--site', 'one']);
    expect(woken.code, woken.stderr).toBe(0);
    expect(await replicas()).toBe('0+1');
    const stopped = await home.run(['stop', 'demo', '--sites', 'one,two']);
    expect(stopped.code, stopped.stderr).toBe(0);
  }, 300_000);
});

async function ask(url: string, key: string, max_tokens: number): Promise<string> {
  const messages = [{ role: 'user', content: 'Hello' }];
  const answer = await fetch(`${url}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'toy', seed: 1, max_tokens, messages, ignore_eos: true }),
  });
  const text = await answer.text();
  expect(answer.status, text).toBe(200);
  return (JSON.parse(text) as { choices: { message: { content: string } }[] }).choices[0]!.message.content;
}

it('a gateway that does not reach the other site is no success', async () => {
  writeSite('three', `mesh:\n  bootstrap: ["127.0.0.1:${await freePort()}"]\n`);
  writeFileSync(join(meshFolder('three'), 'network.key'), new Uint8Array(32).fill(7), { mode: 0o600 });
  writeModel({}, { devices: { node_kinds: ['one/this-machine', 'three/this-machine'] } });
  const outcome = await home.run(
    ['deploy', '--yes', 'model.yaml', '--sites', 'one,three', '--timeout', '20s'],
    {
      timeout_ms: 150_000,
    },
  );
  const stopped = await home.run(['stop', 'demo', '--sites', 'one,three']);
  expect(outcome.code, outcome.stderr).toBe(7);
  expect(outcome.stderr).toMatch(/warning: no address in mesh.bootstrap ends in the mesh.port/);
  expect(outcome.stderr).toMatch(
    /the gateway of one does not reach all of them \[E_SITES_APART\]\n {2}because: it reaches 0 of 1 replica\(s\) of toy on three/,
  );
  expect(stopped.code, stopped.stderr).toBe(0);
}, 180_000);
