/** Apptainer: a deployment whose node agents see nothing but what is bound, on a real Slurm cluster. */
import { mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { UserHome } from '../cluster/user-home.ts';
import { apptainerProgram } from '../engines/environments.ts';

const { found: apptainer, lacking } = apptainerProgram();
/** The image is a folder without a file in it: everything comes from the node, read-only. */
const fromNode = ['/usr', '/lib', '/lib64', '/bin'];

describe.skipIf(lacking !== '')(`node agents in apptainer${lacking}`, () => {
  let home: UserHome;
  beforeAll(async () => {
    const container = {
      runtime: 'apptainer',
      command: apptainer,
      image: '~/image',
      binds: fromNode.map((folder) => `${folder}:${folder}:ro`),
      // Neither the home of the user nor /tmp of the node.
      flags: ['--contain'],
    };
    home = await UserHome.open({
      site: (shipped) =>
        `${shipped.replace(/^name: .*/m, 'name: boxed')}${stringify({ runtime: { container } })}`,
    });
    for (const name of [
      '',
      ...fromNode,
      'etc',
      'tmp',
      'dev',
      'proc',
      'sys',
      'run',
      'var/tmp',
      'root',
      'home',
    ]) {
      mkdirSync(join(home.folder, 'image', name), { recursive: true });
      home.own(join(home.folder, 'image', name));
    }
  });
  afterAll(() => home?.close());

  it('serve a model of a Hugging Face cache', async () => {
    const cache = join(home.folder, 'hub/models--a--b');
    const moved = await home.run([
      ...['sh', '-ec', 'mkdir -p "$1/blobs" "$1/snapshots/7c"; mv toy.gguf "$1/blobs/0f"'],
      ...['sh', cache],
    ]);
    expect(moved.code, moved.stderr).toBe(0);
    symlinkSync('../../blobs/0f', join(cache, 'snapshots/7c/toy.gguf'));
    const source = './hub/models--a--b/snapshots/7c/toy.gguf';
    const model = { name: 'tiny', source, cpu_threads: 1, context_tokens: 512, devices: { kind: 'gpu' } };
    home.write('model.yaml', { name: 'demo', models: [model] });
    const deployed = await home.hpcserve('deploy', '--yes', 'model.yaml', '--timeout', '90s');
    if (deployed.code !== 0) throw new Error(deployed.stderr + (await home.explain()));
    const answered = await home.hpcserve('chat', 'tiny', 'Hello', '--max-tokens', '4');
    expect(answered.code, answered.stderr).toBe(0);
    const inside = await home.hpcserve('status', 'demo', '--json');
    expect(JSON.parse(inside.stdout).deployments[0].phase).toBe('serving');
    expect((await home.hpcserve('stop', 'demo')).code).toBe(0);
  });
});
