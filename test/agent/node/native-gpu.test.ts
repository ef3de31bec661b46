/** A real agent with a device worker on a Vulkan device: found, served on, and what is wrong said by name. */
import { execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { isDeepStrictEqual } from 'node:util';
import { describe, expect, test, vi } from 'vitest';
import { findNativeLibraries, nativeFolderVariable } from '../../../native/libraries.ts';
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

/** A backend for CUDA by its name, linked against libraries in `beside`; their driver knows CUDA 12.4. */
function cudaBackend(path: string, beside: string, names: readonly string[]): void {
  const compile = (output: string, input: string, ...more: string[]): void => {
    const argv = ['-shared', '-fPIC', '-x', 'c', '-', '-o', output, '-x', 'none', ...more];
    execFileSync('cc', argv, { input });
  };
  mkdirSync(beside);
  const version = 'int cuDriverGetVersion(int *version) { *version = 12040; return 0; }';
  for (const name of names)
    compile(join(beside, name), name.startsWith('libcuda.') ? version : 'int nothing;');
  const linked = names.map((name) => `-l:${name}`);
  compile(path, 'int nothing;', '-L', beside, '-Wl,--no-as-needed', ...linked);
}

/** The folder of those that come along, for CPUs alone, whatever folder this run names. */
function plainLibraries(): string {
  vi.stubEnv(nativeFolderVariable, undefined);
  try {
    return findNativeLibraries().folder;
  } finally {
    vi.unstubAllEnvs();
  }
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
        // An agent writes down what it serves a moment after it announces it.
        const streamed = 'weights' in wanted ? ['m'] : [];
        await agent.stateWhere(
          ({ sessions }) =>
            sessions.some(({ session_id }) => session_id === session.session_id) &&
            isDeepStrictEqual(
              sessions.flatMap((each) => Object.keys(each.streamed ?? {})),
              streamed,
            ),
          `streamed models [${streamed}] to be written down`,
        );
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

    test('fail by name where the libraries have no such backend, do not load, are newer than the driver, or find no device', async () => {
      await using site = await Site.open();
      const broken = join(site.folder, 'broken');
      mkdirSync(broken);
      cpSync(native_library_dir, broken, { recursive: true });
      rmSync(join(broken, 'libggml-base.so'));
      writeFileSync(join(broken, 'libggml-base.so'), 'no library');
      const [lacking, old] = ['lacking', 'old'].map((name) => join(site.folder, name)) as [string, string];
      const plain = plainLibraries();
      for (const copy of [lacking, old]) cpSync(plain, copy, { recursive: true });
      const runtime = join(site.folder, 'runtime');
      cudaBackend(join(lacking, 'libggml-cuda.so'), runtime, ['libcudart.so.13']);
      rmSync(runtime, { recursive: true });
      cudaBackend(join(old, 'libggml-cuda.so'), runtime, ['libcuda.so.1', 'libcudart.so.13']);
      const cases: [string, Record<string, string>, RegExp][] = [
        [plain, environment, /have no backend for GPUs/],
        [broken, environment, /cannot be listed/],
        [
          lacking,
          environment,
          /the job has 0 of that kind here.*cuda: libcudart\.so\.13 missing \(a module with CUDA/,
        ],
        [
          old,
          { ...environment, LD_LIBRARY_PATH: runtime },
          /the job has 0 of that kind here.*knows CUDA up to 12\.4, and libcudart\.so\.13 needs 13\.0/,
        ],
        [
          native_library_dir,
          { ...environment, GGML_VK_VISIBLE_DEVICES: '' },
          /the job has 0 of that kind here/,
        ],
      ];
      for (const [folder, variables, words] of cases) {
        const agent = await site.start([await gpuUnit()], { native_library_dir: folder }, variables);
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
