/**
 * A real agent whose device worker finds a kernel wrong: it serves without, and its state says so, which `status` and
 * `doctor` show.
 */
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { folderWithOneCpu, lackingForWrongKernels, wrongKernelCpu } from '../engine/cpu-library-folders.ts';
import { model } from '../engine/support.ts';
import { Site, unitOf } from '../support.ts';

const source = fileURLToPath(new URL('../device-worker/wrong-kernels.c', import.meta.url));
const lacking = lackingForWrongKernels();

describe.skipIf(lacking !== '')(
  `a kernel that is wrong on a node${lacking && ` [skipped: needs ${lacking}]`}`,
  () => {
    test('is a notice of its agent, and its model serves', async () => {
      await using site = await Site.open();
      const library = join(site.folder, 'wrong.so');
      execFileSync('cc', ['-shared', '-fPIC', '-O2', '-o', library, source]);
      const agent = await site.start(
        [
          unitOf(
            { name: 'm', kernels: 'ggml' },
            { engine: 'native', model_path: await model('tiny-llama', 'Q4_0'), kv_tokens: 512 },
          ),
        ],
        { native_library_dir: folderWithOneCpu(join(site.folder, 'libraries'), wrongKernelCpu) },
        { LD_PRELOAD: library, XDG_CACHE_HOME: join(site.folder, 'cache') },
      );
      await site.serving('m', 30_000);
      const { notices } = await agent.stateWhere((state) => state.notices !== undefined, 'it says so');
      expect(notices![0]).toMatchObject({
        code: 'E_NATIVE_KERNEL',
        what: expect.stringMatching(/^the CPU_REPACK kernel for Q4_0 .* is wrong on this CPU: other kernels/),
      });
    });
  },
);
