/** A machine with a GPU and no Slurm: the backend is added, a model is deployed on the device, and answers. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { librariesRelease } from '../../cli/native/add-backend.ts';
import { packageRoot } from '../../host/package-root.ts';
import { type Home, type Outcome, temporaryHome } from '../cli/support.ts';
import { vulkanDevice } from '../engines/environments.ts';

const { found, lacking } = vulkanDevice();
const llvmpipe = /llvmpipe/;

describe.skipIf(found === undefined)(`a GPU on the local site${lacking}`, () => {
  let home: Home;
  const run = (...argv: string[]): Promise<Outcome> =>
    home.run(['--site', 'local', ...argv], { env: { ...found!.environment, PATH: '/usr/bin:/bin' } });

  beforeAll(async () => {
    home = temporaryHome();
    const { code, stderr } = await run('model', 'synth', 'toy.gguf', '--preset', 'tiny-llama');
    expect(code, stderr).toBe(0);
    writeFileSync(
      join(home.folder, 'model.yaml'),
      'name: demo\nmodels:\n  - name: tiny\n    source: ./toy.gguf\n    context_tokens: 512\n    max_sequences: 2\n    devices: {kind: gpu}\n',
    );
  });
  afterAll(async () => {
    await run('stop', '--all', '--yes');
    home.dispose();
  });

  it('is not planned with before a backend is there', async () => {
    const { code, stderr } = await run('plan', 'model.yaml');
    expect(code).toBe(5);
    expect(stderr).toMatch(/devices.kind asks for gpu; these nodes offer cpu/);
    expect((await run('native', 'list')).stdout).toMatch(/backends {3}cpu\n$/);
  });

  it('is found once the backend was added from its file; another file is refused', async () => {
    const other = await run('native', 'add', 'cuda', '--from', found!.package_file);
    expect(other.code).toBe(12);
    expect(other.stderr).toMatch(/is not @node-llama-cpp\/linux-x64-cuda@[\s\S]*SHA-512/);
    const { code, stdout, stderr } = await run('native', 'add', 'vulkan', '--from', found!.package_file);
    expect(code, stderr).toBe(0);
    expect(stdout).toBe(`${home.folder}/.hpcserve/local/native/vulkan-${librariesRelease}\n`);
    expect((await run('native', 'list')).stdout).toMatch(
      /backends {3}cpu, vulkan\ndevice {5}Vulkan0: llvmpipe/,
    );
    const { stdout: judged } = await run('doctor');
    expect(judged).toMatch(/PASSED {3}native devices: Vulkan0: llvmpipe/);
    expect(judged).toMatch(/PASSED {3}libraries of native devices: vulkan: libvulkan\.so\.1 found/);
  });

  it('serves a model through the gateway, and status shows it', async () => {
    const plan = await run('plan', 'model.yaml');
    expect(plan.code, plan.stderr).toBe(0);
    expect(plan.stdout).toMatch(llvmpipe);
    const { code, stderr } = await run('deploy', 'model.yaml', '--timeout', '50s');
    expect(code, stderr).toBe(0);
    expect(stderr).toMatch(/tiny serves on/);
    expect((await run('chat', 'tiny', 'Hi', '--max-tokens', '4')).code).toBe(0);
    const status = await run('status', 'demo');
    expect(status.stdout).toMatch(llvmpipe);
    const { deployments } = JSON.parse((await run('status', 'demo', '--json')).stdout);
    expect(deployments[0]).toMatchObject({ phase: 'serving', replicas_serving: 1 });
  });
});

describe('the release of backends that can be added', () => {
  it('is that of the libraries for CPUs', () => {
    const { optionalDependencies } = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8'));
    expect(optionalDependencies['@node-llama-cpp/linux-x64']).toBe(librariesRelease);
  });
});
