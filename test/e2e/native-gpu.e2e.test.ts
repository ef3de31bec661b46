/** A machine with a GPU and no Slurm: the backend is added, a model is deployed on the device, and answers. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { librariesRelease } from '../../cli/native/add-backend.ts';
import { packageRoot } from '../../host/package-root.ts';
import { type DeviceReport, deviceReportSchema } from '../../spec/device-report.ts';
import { headers } from '../../spec/wire.ts';
import { type Home, type Outcome, temporaryHome } from '../cli/support.ts';
import { vulkanDevice } from '../engines/environments.ts';
import { eventually } from '../mesh/support.ts';

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

  it('is asked after the CPU by one deployment on both, and goes on with what is lost there', async () => {
    expect((await run('stop', 'demo', '--yes')).code).toBe(0);
    writeFileSync(
      join(home.folder, 'both.yaml'),
      'name: both\nmodels:\n  - name: twice\n    source: ./toy.gguf\n    context_tokens: 2048\n    max_sequences: 1\n    replicas: 2\n    devices: {kind: any, node_kinds: [this-machine, this-machine-gpus]}\n',
    );
    const { code, stdout, stderr } = await run('deploy', 'both.yaml', '--timeout', '100s');
    expect(code, stderr).toBe(0);
    const [, url, key] = /^URL +(\S+)\nkey +(\S+)$/m.exec(stdout)!;
    /** Without a command that starts for a second: requests meet at the replicas. */
    const request = (max_tokens: number, options: { stream?: boolean; signal?: AbortSignal } = {}) =>
      fetch(`${url}/chat/completions`, {
        method: 'POST',
        headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
        body: JSON.stringify({
          model: 'twice',
          messages: [{ role: 'user', content: 'Hi' }],
          max_tokens,
          stream: options.stream ?? false,
        }),
        signal: options.signal ?? null,
      });
    const ask = async (max_tokens: number): Promise<number> => {
      const response = await request(max_tokens);
      await response.text();
      return response.status;
    };
    const lookAt = async (): Promise<Partial<Record<'cpu' | 'gpu', DeviceReport>>> => {
      const { devices } = JSON.parse((await run('top', '--once', '--json')).stdout) as {
        devices: { devices: { kind: 'cpu' | 'gpu' }[]; report: unknown }[];
      };
      // One that was lost a moment ago says nothing, nor does one that computes on cores that others hold.
      const entries = devices.flatMap(({ devices: [first], report }) =>
        report === undefined ? [] : [[first!.kind, deviceReportSchema.parse(report)]],
      );
      return Object.fromEntries(entries);
    };
    const admitted = (): Promise<[cpu: number, gpu: number]> =>
      eventually(
        async () => {
          const { cpu, gpu } = await lookAt();
          return cpu && gpu && [cpu.scheduler.admitted, gpu.scheduler.admitted];
        },
        'reports of both',
        30_000,
      );
    expect(await admitted()).toEqual([0, 0]);
    expect((await run('chat', 'twice', 'Hi', '--max-tokens', '4')).code).toBe(0);
    // The CPU first, where both have room.
    expect(await admitted()).toEqual([1, 0]);
    expect(await Promise.all([ask(300), ask(300)])).toEqual([200, 200]);
    expect(await admitted()).toEqual([2, 1]);
    const { pid } = await eventually(async () => (await lookAt()).cpu, 'a report of the CPU', 30_000);
    const leaves = new AbortController();
    const lost = await request(1800, { stream: true, signal: leaves.signal });
    expect(lost.status).toBe(200);
    expect(lost.headers.get(headers.device) ?? 'llvmpipe').not.toMatch(llvmpipe);
    await lost.body!.getReader().read();
    // With its first token: a fast CPU has all 1,800 within a second.
    process.kill(pid, 'SIGKILL');
    // The rest of it takes this driver a minute.
    await eventually(
      async () => {
        const { gpu } = await lookAt();
        return (gpu?.scheduler.admitted === 2 && gpu.instances[0]?.decoding === 1) || undefined;
      },
      'the rest of it on the GPU',
      60_000,
    );
    leaves.abort();
    expect((await run('stop', 'both', '--yes')).code).toBe(0);
  }, 240_000);
});

describe('the release of backends that can be added', () => {
  it('is that of the libraries for CPUs', () => {
    const { optionalDependencies } = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8'));
    expect(optionalDependencies['@node-llama-cpp/linux-x64']).toBe(librariesRelease);
  });
});
