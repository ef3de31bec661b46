/** A real agent whose device worker has less than it was to have: it serves, and its state says so to `status`. */
import { mkdtempSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { mountTypeOf, readMounts } from '../../../host/mounts.ts';
import type { SiteSharing } from '../../../spec/sharing-settings.ts';
import { model } from '../engine/support.ts';
import { Site, unitOf } from '../support.ts';

const gib = 2 ** 30;

/** What the agent says of a worker on a CPU that answers. */
async function noticesOf(site: Site, sharing: SiteSharing, prefix: string[] = []) {
  const own = { engine: 'native', model_path: await model('tiny-llama', 'Q8_0'), kv_tokens: 512 } as const;
  const environment = { XDG_CACHE_HOME: join(site.folder, 'cache') };
  const agent = await site.start([unitOf({ name: 'm' }, own)], { sharing }, environment, prefix);
  const record = await site.serving('m', 60_000);
  const { statusCode, body } = await site.ask(record, 'hello');
  expect([statusCode, await body.text()]).toEqual([200, expect.stringContaining('[DONE]')]);
  return (await agent.stateWhere((state) => state.notices !== undefined, 'it says so')).notices!;
}

const memory = '/dev/shm';
const isMemory = mountTypeOf(memory, readMounts()) === 'tmpfs';

describe('what a device worker has less than it was to have is a notice of its agent', () => {
  test.skipIf(!isMemory)(`a folder for KV that is memory [needs a tmpfs at ${memory}]`, async () => {
    await using site = await Site.open();
    const folder = mkdtempSync(join(memory, 'hpcserve-parking-'));
    try {
      const [notice, ...more] = await noticesOf(site, { parking_dir: folder });
      expect([notice, more]).toMatchObject([{ code: 'E_WORKER_PARKING' }, []]);
      expect(notice!.because).toEqual([`${folder} is on tmpfs, which takes the memory of the node`]);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  test('a pool for which the kernel gives not enough addresses', async () => {
    await using site = await Site.open();
    const [notice, ...more] = await noticesOf(site, { pool_gb: 20 }, ['prlimit', `--as=${24 * gib}`]);
    expect([notice, more]).toMatchObject([{ code: 'E_NATIVE_MEMORY' }, []]);
    expect(notice!.what).toMatch(/^the memory pool in host memory has \d+\.\d\d GiB in place of 18\.63 GiB$/);
    expect(notice!.because).toEqual(['the kernel gave no more (vm.overcommit_memory, ulimit -v)']);
  });
});
