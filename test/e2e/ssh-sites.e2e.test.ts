/** One deployment over two sites: one here, one over ssh, both with real Slurm jobs; one mesh, one plan, one URL. */
import { chownSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import { UserHome } from '../cluster/user-home.ts';
import { freePort } from '../free-port.ts';
import { type SshServer, startSshServer } from '../slurm/ssh/server.ts';

let home: UserHome;
let server: SshServer;
let mesh_port: number;

/** The shipped test cluster with one of its node kinds, and state of its own: a site. */
const siteOf = (
  shipped: string,
  name: string,
  kind: string,
  more: { slurm?: string; rest?: string },
): string => {
  const [head, ...kinds] = shipped.slice(0, shipped.indexOf('gateway:')).split(/^ {2}- name: /m);
  const own = kinds.find((each) => each.startsWith(`${kind}\n`));
  return [
    head!.replace('name: test-cluster', `name: ${name}`).replace('slurm:\n', `slurm:\n${more.slurm ?? ''}`),
    `  - name: ${own}`,
    `gateway:\n  place: login\n${more.rest ?? ''}`,
  ].join('');
};

beforeAll(async () => {
  let shipped = '';
  home = await UserHome.open({
    site: (text) => {
      shipped = text;
      return text;
    },
  });
  const { user, state } = home.cluster;
  server = await startSshServer(state.env, user.name);
  chownSync(server.identity_file, user.uid, user.gid);
  mesh_port = await freePort();
  await home.run(['mkdir', '-p', '-m', '700', join(home.folder, 'sites')]);
  home.write(
    'sites/near.yaml',
    siteOf(shipped, 'near', 'a100', { rest: `mesh:\n  host: 127.0.0.1\n  port: ${mesh_port}\n` }),
  );
  const far = (port: number): string =>
    siteOf(shipped.replace('~/.hpcserve', join(home.folder, 'far-state')), 'far', 'gh200', {
      slurm: [
        '  ssh:',
        '    host: 127.0.0.1',
        `    port: ${port}`,
        `    user: ${user.name}`,
        `    identity_file: ${server.identity_file}`,
        `    known_hosts_file: ${server.known_hosts_file}\n`,
      ].join('\n'),
      rest: [
        `runtime:\n  install_dir: ${packageRoot}\n  node_path: ${process.execPath}`,
        `mesh:\n  host: 127.0.0.1\n  bootstrap: ["127.0.0.1:${mesh_port}"]\n`,
      ].join('\n'),
    });
  home.write('sites/far.yaml', far(server.port));
  home.write('sites/gone.yaml', far(await freePort()).replace('name: far', 'name: gone'));
  home.write('model.yaml', {
    name: 'both',
    models: [
      {
        name: 'toy',
        source: './toy.gguf',
        replicas: 2,
        cpu_threads: 1,
        context_tokens: 512,
        // So that requests at the same time need both replicas.
        max_sequences: 1,
        devices: { node_kinds: ['near/a100', 'gh200'] },
      },
    ],
  });
}, 120_000);
afterAll(async () => {
  await home.hpcserve('stop', '--all', '--yes', '--sites', sites);
  await server?.stop();
  const remote = join(home.cluster.user.home, '.hpcserve/remote/far');
  await home.run(['rm', '-rf', remote]);
  await home.close();
}, 90_000);

const sites = 'sites/near.yaml,sites/far.yaml';

/** What is in the queue for these sites: `NAME NODES` of each job. */
async function jobs(): Promise<string[]> {
  const { code, stdout, stderr } = await home.run([
    'squeue',
    '--noheader',
    '--states=R,PD,CG',
    '--format=%i %j %N %Z',
  ]);
  expect(code, stderr).toBe(0);
  return stdout
    .split('\n')
    .filter((line) => line.includes(home.folder))
    .map((line) => line.split(' ').slice(0, 3).join(' '))
    .sort();
}

/** A network key for both sites, or one for each. */
async function writeKeys(same: boolean): Promise<void> {
  const script = [
    'set -e; umask 077',
    'mkdir -p .hpcserve/near/mesh far-state/far/mesh',
    'head -c 32 /dev/urandom > .hpcserve/near/mesh/network.key',
    same
      ? 'cp .hpcserve/near/mesh/network.key far-state/far/mesh/network.key'
      : 'head -c 32 /dev/urandom > far-state/far/mesh/network.key',
  ].join('\n');
  const { code, stderr } = await home.run(['sh', '-c', script]);
  expect(code, stderr).toBe(0);
}

describe('a deployment over two sites', () => {
  it('is refused where they are no mesh, are named twice, or are not there; nothing is submitted', async () => {
    const keyless = await home.hpcserve('deploy', '--yes', 'model.yaml', '--sites', sites);
    expect(keyless.code, keyless.stderr).toBe(7);
    expect(keyless.stderr).toMatch(
      /near and far are not one mesh.*\[E_SITES_APART\]\n.*none of them has a network.key/,
    );
    await writeKeys(false);
    const strangers = await home.hpcserve('deploy', '--yes', 'model.yaml', '--sites', sites);
    expect(strangers.stderr).toMatch(/the network.key of far is another than that of near/);
    expect(strangers.stderr).toContain(`${home.folder}/far-state/far/mesh of far`);
    const twice = await home.hpcserve(
      'deploy',
      '--yes',
      'model.yaml',
      '--sites',
      'sites/near.yaml,sites/near.yaml',
    );
    expect(twice.code).toBe(2);
    expect(twice.stderr).toMatch(/near is named twice/);
    const gone = await home.hpcserve(
      'deploy',
      '--yes',
      'model.yaml',
      '--sites',
      'sites/near.yaml,sites/gone.yaml',
    );
    expect(gone.code, gone.stderr).toBe(7);
    expect(gone.stderr).toMatch(/^error: gone: .*\[E_SSH_CONNECT\]/);
    expect(await jobs()).toEqual([]);
  }, 90_000);

  it('is planned as one', async () => {
    await writeKeys(true);
    const { code, stdout, stderr } = await home.hpcserve('plan', 'model.yaml', '--sites', sites);
    expect(code, stderr).toBe(0);
    expect(stdout).toMatch(/^both on near, far$/m);
    expect(stdout).toMatch(/^1 +near\/a100 .* toy-0$/m);
    expect(stdout).toMatch(/^2 +far\/gh200 .* toy-1$/m);
    expect(stdout).toMatch(/^near: 1 replica of toy\nfar: 1 replica of toy$/m);
    expect(stderr).not.toMatch(/would refuse/);
  }, 60_000);

  it('serves both shares behind the URL of the first, and is the same deployment when it is asked for again', async () => {
    const deployed = await home.hpcserve(
      'deploy',
      '--yes',
      'model.yaml',
      '--sites',
      sites,
      '--timeout',
      '90s',
    );
    expect(deployed.code, `${deployed.stderr}\n${await home.explain()}`).toBe(0);
    expect(deployed.stdout).toMatch(/near: 1 replica of toy\n +far: 1 replica of toy/);
    const before = await jobs();
    const names = before.map((job) => job.split(' ')[2]!).sort();
    expect(names).toEqual([expect.stringMatching(/^a\d$/), expect.stringMatching(/^gh\d$/)]);

    const [, url] = /URL +(\S+)/.exec(deployed.stdout)!;
    const [, key] = /key +(\S+)/.exec(deployed.stdout)!;
    const ask = async (): Promise<string> => {
      const answer = await fetch(`${url}/chat/completions`, {
        method: 'POST',
        headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
        body: JSON.stringify({
          model: 'toy',
          max_tokens: 24,
          messages: [{ role: 'user', content: 'Hello' }],
        }),
      });
      expect(answer.status, await answer.text()).toBe(200);
      return `${answer.headers.get('x-hpcserve-site')} ${answer.headers.get('x-hpcserve-node')}`;
    };
    const nodes = new Set(await Promise.all(Array.from({ length: 6 }, ask)));
    expect([...nodes].sort()).toEqual([`far ${names[1]}`, `near ${names[0]}`]);

    const again = await home.hpcserve('deploy', '--yes', 'model.yaml', '--sites', sites, '--json');
    expect(again.code, again.stderr).toBe(0);
    expect(JSON.parse(again.stdout.trim().split('\n').at(-1)!)).toMatchObject({
      deployment: 'both',
      site: 'near',
      url,
      key,
      models: ['toy'],
      serving: true,
      sites: [
        { site: 'near', replicas: { toy: 1 } },
        { site: 'far', replicas: { toy: 1 } },
      ],
    });
    expect(await jobs()).toEqual(before);
  }, 180_000);

  it('is shown site by site, and stopped on both', async () => {
    const shown = await home.hpcserve('status', 'both', '--sites', sites);
    expect(shown.code, shown.stderr).toBe(0);
    expect(shown.stdout).toMatch(
      /^near$[\s\S]*1 of 1 replicas serve[\s\S]*^far \(127\.0\.0\.1\)$[\s\S]*1 of 1 replicas serve/m,
    );
    // Each runs where the plan over both put it.
    expect(shown.stdout.match(/as planned: 1 of 1 replicas/g)).toHaveLength(2);
    const stopped = await home.hpcserve('stop', 'both', '--sites', sites);
    expect(stopped.code, stopped.stderr).toBe(0);
    expect(stopped.stderr).toMatch(/near: both is stopped[\s\S]*far: both is stopped/);
    expect(await jobs()).toEqual([]);
  }, 90_000);
});
