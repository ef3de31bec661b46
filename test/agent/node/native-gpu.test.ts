/** A real agent with a device worker on a Vulkan device: found, served on, and what is wrong said by name. */
import { execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { findNativeLibraries } from '../../../native/libraries.ts';
import type { UnitSpec } from '../../../spec/launch.ts';
import { vulkanDevice } from '../../engines/environments.ts';
import { model } from '../engine/support.ts';
import { Site, unitOf } from '../support.ts';

const deviceLost = fileURLToPath(new URL('device-lost.c', import.meta.url));
const deviceShared = fileURLToPath(new URL('device-shared.c', import.meta.url));
const { found, lacking } = vulkanDevice();
/** Kernels are compiled on the cores that compute. */
const serving_ms = 60_000;
const gibibyte = 2 ** 30;

async function gpuUnit(more: Partial<UnitSpec> = {}, wanted: object = {}): Promise<UnitSpec> {
  const model_path = await model('tiny-llama', 'Q8_0');
  const memory = { device_bytes: gibibyte / 8, kv_bytes: 2 ** 20, share: 0.1 };
  return unitOf(
    { name: 'm', ...wanted },
    { engine: 'native', device_kind: 'gpu', model_path, kv_tokens: 512, memory, ...more },
  );
}

/** A backend for CUDA by its name, linked against a runtime that is not there. */
function withoutRuntime(path: string): void {
  const runtime = `${path}.runtime`;
  const compile = (output: string, ...more: string[]): void => {
    const argv = ['-shared', '-fPIC', '-x', 'c', '-', '-o', output, '-x', 'none', ...more];
    execFileSync('cc', argv, { input: 'int nothing;' });
  };
  mkdirSync(runtime);
  compile(join(runtime, 'libcudart.so.13'));
  compile(path, '-L', runtime, '-Wl,--no-as-needed', '-l:libcudart.so.13');
  rmSync(runtime, { recursive: true });
}

/** Of a worker on a device that somebody else uses, too. */
function besideStranger(site: Site, left_bytes: number): Record<string, string> {
  const library = join(site.folder, 'device-shared.so');
  execFileSync('cc', ['-shared', '-fPIC', '-O1', '-o', library, deviceShared]);
  return {
    LD_PRELOAD: `${library}:libvulkan.so.1`,
    DEVICE_LEFT_BYTES: String(left_bytes),
    HPCSERVE_DEVICE_LOCKS: site.folder,
  };
}

describe.skipIf(found === undefined)(
  `units of the native engine on a GPU${lacking}`,
  { timeout: 120_000 },
  () => {
    const { library_dir: native_library_dir = '', environment = {} } = found ?? {};

    test('are served by a worker that has the device alone; another worker for it is told who has it', async () => {
      await using site = await Site.open();
      const folder = { HPCSERVE_DEVICE_LOCKS: site.folder, ...environment };
      await site.start([await gpuUnit()], { native_library_dir }, folder);
      const session = await site.serving('m', serving_ms);
      expect(session.metadata.devices).toMatchObject([
        { kind: 'gpu', model: expect.stringContaining('llvmpipe'), memory_bytes: expect.any(Number) },
      ]);
      const reply = await site.ask(session, 'hello');
      expect(reply.statusCode).toBe(200);
      expect(await reply.body.text()).toContain('[DONE]');

      const second = await site.start([await gpuUnit()], { native_library_dir }, folder);
      const { code } = await second.ended;
      expect(code).toBe(8);
      const { sessions } = (await second.state())!;
      expect(JSON.stringify(sessions)).toMatch(/llvmpipe.* is computed on by another device worker of yours/);
    });

    test.each([
      ['lie on it', {}, {}],
      ['are streamed', { weights: 'streamed' }, { arena_bytes: 2 ** 22 }],
    ])(
      'end with a device that is lost in the middle of an iteration, and say so: weights %s',
      async (_where, wanted, more) => {
        await using site = await Site.open();
        const library = join(site.folder, 'device-lost.so');
        execFileSync('cc', ['-shared', '-fPIC', '-O1', '-o', library, deviceLost]);
        const lost = join(site.folder, 'lost');
        const preload = {
          LD_PRELOAD: `${library}:libvulkan.so.1`,
          DEVICE_LOST: lost,
          HPCSERVE_DEVICE_LOCKS: site.folder,
        };
        const memory = { device_bytes: gibibyte / 8, kv_bytes: 2 ** 20, share: 0.1, ...more };
        const agent = await site.start(
          [await gpuUnit({ memory }, wanted)],
          { native_library_dir },
          { ...environment, ...preload },
        );
        const session = await site.serving('m', serving_ms);
        const { sessions } = (await agent.state())!;
        const streamed = sessions.flatMap((each) => Object.keys(each.streamed ?? {}));
        expect(streamed).toEqual('weights' in wanted ? ['m'] : []);
        writeFileSync(lost, '');
        const answer = site.ask(session, 'hello').then(({ body }) => body.text());
        // The agent may have ended before it could say more.
        expect(await answer.catch(() => 'broken off')).not.toContain('[DONE]');
        expect((await agent.ended).code).not.toBe(0);
        expect(JSON.stringify(await agent.state())).toMatch(
          /E_AGENT_WORKER.*llvmpipe.*the device is gone: .*DeviceLost/,
        );
      },
    );

    test('have what a stranger leaves of the device, and say so; who finds no memory there is refused, and no other', async () => {
      await using site = await Site.open();
      const shared = besideStranger(site, 96 * 2 ** 20);
      const long = { context_tokens: 65_536, kv_tokens: 65_536 };
      const agent = await site.start(
        [await gpuUnit(long)],
        { native_library_dir },
        { ...environment, ...shared },
      );
      const session = await site.serving('m', serving_ms);
      await agent.stateWhere(
        (state) =>
          /the memory pool of llvmpipe.* has 0\.08 GiB in place of 0\.13 GiB.*others have memory of the device, which has/.test(
            JSON.stringify(state.notices),
          ),
        'the smaller pool to be told',
      );
      const ask = async (tokens: number) => {
        const { statusCode, headers, body } = await site.pool(session).request({
          method: 'POST',
          path: '/v1/completions',
          headers: { 'content-type': 'application/json' },
          body: JSON.stringify({
            model: 'm',
            prompt: Array(tokens).fill(7),
            max_tokens: 4,
            ignore_eos: true,
          }),
        });
        return { statusCode, after: Number(headers['retry-after']), text: await body.text() };
      };
      // Its KV fits. What a chunk of it is computed in does not, neither in the pool nor beside it.
      const refused = await ask(40_000);
      expect([refused.statusCode, refused.text]).toEqual([
        503,
        expect.stringContaining('the device has no memory for what is computed of 40000 tokens'),
      ]);
      expect(refused.after).toBeGreaterThanOrEqual(1);
      const answered = await ask(40);
      expect([answered.statusCode, answered.text]).toEqual([
        200,
        expect.stringContaining('"completion_tokens":4'),
      ]);
      expect((await agent.state())!.sessions.flatMap(({ error }) => error ?? [])).toEqual([]);
    });

    test('end where a stranger leaves next to nothing of the device', async () => {
      await using site = await Site.open();
      const shared = besideStranger(site, 2 * 2 ** 20);
      const agent = await site.start(
        [await gpuUnit()],
        { native_library_dir },
        { ...environment, ...shared },
      );
      const { sessions } = await agent.stateWhere(
        (state) => state.sessions.some(({ error }) => error),
        'an error',
      );
      expect(JSON.stringify(sessions)).toMatch(
        /E_NATIVE_MEMORY.*of memory for a pool on llvmpipe.*0\.00 GiB of its/,
      );
    });

    test('fail by name where the libraries have no such backend, do not load, or find no device', async () => {
      await using site = await Site.open();
      const broken = join(site.folder, 'broken');
      mkdirSync(broken);
      cpSync(native_library_dir, broken, { recursive: true });
      rmSync(join(broken, 'libggml-base.so'));
      writeFileSync(join(broken, 'libggml-base.so'), 'no library');
      const lacking = join(site.folder, 'lacking');
      mkdirSync(lacking);
      cpSync(findNativeLibraries().folder, lacking, { recursive: true });
      withoutRuntime(join(lacking, 'libggml-cuda.so'));
      const cases: [string | undefined, Record<string, string>, RegExp][] = [
        [undefined, environment, /have no backend for GPUs/],
        [broken, environment, /cannot be listed/],
        [
          lacking,
          environment,
          /the job has 0 of that kind here.*cuda: libcudart\.so\.13 missing \(a module with CUDA/,
        ],
        [
          native_library_dir,
          { ...environment, GGML_VK_VISIBLE_DEVICES: '' },
          /the job has 0 of that kind here/,
        ],
      ];
      for (const [folder, variables, words] of cases) {
        const launch = folder === undefined ? {} : { native_library_dir: folder };
        const agent = await site.start([await gpuUnit()], launch, variables);
        expect((await agent.ended).code).toBe(8);
        expect(JSON.stringify(await agent.state())).toMatch(words);
      }
    });

    test('have a pool no larger than the device', async () => {
      await using site = await Site.open();
      const sharing = { pool_gb: 100_000 };
      const weight_bytes = 2 ** 50;
      const agent = await site.start(
        [await gpuUnit({ weight_bytes })],
        { native_library_dir, sharing },
        environment,
      );
      expect((await agent.ended).code).toBe(8);
      expect(JSON.stringify(await agent.state())).toMatch(/E_POOL_FULL.*llvmpipe[^"]* has [\d.]+ GiB/);
    });
  },
);
