/** A state folder whose disk is full: a filesystem of its own, real ENOSPC. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmdirSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Home, temporaryHome } from '../cli/support.ts';

const disk = mkdtempSync(join(tmpdir(), 'hpcserve-disk-'));
const mounted = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=1m,mode=0700', 'tmpfs', disk]).status === 0;
const filler = join(disk, 'filler');

function fill(): void {
  const { bavail, bsize } = statfsSync(disk);
  try {
    writeFileSync(filler, Buffer.alloc(bavail * bsize));
  } catch (error) {
    // What runs there has written meanwhile: it is full all the same.
    if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
  }
}

describe.skipIf(!mounted)('a full disk', () => {
  let home: Home;
  const hpcserve = (...argv: string[]) => home.run([...argv, '--state-dir', disk]);

  beforeAll(async () => {
    home = temporaryHome();
    const made = await home.run(['model', 'synth', 'toy.gguf', '--preset', 'tiny-llama', '--seed', '1']);
    expect(made.code, made.stderr).toBe(0);
    writeFileSync(
      join(home.folder, 'model.yaml'),
      'name: demo\nmodels:\n  - {name: tiny, source: ./toy.gguf, cpu_threads: 1, context_tokens: 512, max_sequences: 4}\n',
    );
    mkdirSync(join(disk, 'local'), { mode: 0o700 });
  });
  afterAll(async () => {
    rmSync(filler, { force: true });
    await hpcserve('stop', '--all', '--yes');
    home.dispose();
  });

  it('refuses to deploy in the words of the system, and leaves nothing behind', async () => {
    fill();
    const { code, stderr } = await hpcserve('deploy', '--yes', 'model.yaml');
    expect(code).toBe(12);
    expect(stderr).toMatch(
      /no space is left on that filesystem \[E_FILESYSTEM\]|E_STATE_FOLDER[\s\S]*ENOSPC/,
    );
    expect(existsSync(join(disk, 'local/deployments/demo'))).toBe(false);
  });

  it('goes on with what runs, tells clients why it does not answer, and stops once there is room', async () => {
    rmSync(filler);
    const deployed = await hpcserve('deploy', '--yes', 'model.yaml', '--timeout', '60s');
    expect(deployed.code, deployed.stderr).toBe(0);
    fill();
    const refused = await hpcserve('stop', 'demo');
    expect(refused.code).toBe(12);
    expect(refused.stderr).toMatch(/ENOSPC/);
    const { deployments } = JSON.parse((await hpcserve('status', '--json')).stdout);
    expect(deployments[0]).toMatchObject({ phase: 'serving' });
    rmSync(filler);
    const stopped = await hpcserve('stop', 'demo');
    expect(stopped.code, stopped.stderr).toBe(0);
  });
});

afterAll(() => {
  if (mounted) spawnSync('umount', [disk]);
  rmdirSync(disk);
});
