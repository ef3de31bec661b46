import { execFile, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import { ownMemoryOf } from '../../host/process-tree.ts';
import { compiledFile } from '../../host/programs.ts';

/** Takes so much when it is told to: a process of its own, since nothing else is freed there meanwhile. */
const program = `
  process.stdin.once('data', () => {
    globalThis.kept = Buffer.alloc(64 * 2 ** 20, 1);
    process.stdout.write('taken');
  });
  process.stdout.write('ready');
`;

it('counts the memory that processes have for themselves, and nothing of those that ended', async () => {
  const child = spawn(process.execPath, ['-e', program], { stdio: ['pipe', 'pipe', 'inherit'] });
  try {
    await once(child.stdout, 'data');
    const before = ownMemoryOf([child.pid!]);
    child.stdin.write('go');
    await once(child.stdout, 'data');
    const after = ownMemoryOf([child.pid!, 2 ** 22 + 1]);
    expect(after - before).toBeGreaterThan(0.8 * 64 * 2 ** 20);
    const [, resident_kib] = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))!;
    expect(after).toBeLessThanOrEqual(1024 * Number(resident_kib));
  } finally {
    child.kill('SIGKILL');
  }
});

const alone = ['--pid', '--mount', '--fork'];
const permitted = process.getuid?.() === 0 && spawnSync('unshare', [...alone, 'true']).status === 0;

it.skipIf(!permitted).each([1, 2])(
  'is found where nodes hide the processes of others (hidepid=%i)',
  async (hidepid) => {
    const folder = mkdtempSync(join(tmpdir(), 'hpcserve-hidden-'));
    try {
      // Another user, who may not read what the checkout lies in.
      chmodSync(folder, 0o755);
      for (const path of ['host/process-tree.js', 'host/process-identity.js'])
        copyFileSync(compiledFile(path), join(folder, basename(path)));
      writeFileSync(join(folder, 'package.json'), '{"type":"module"}');
      const look = `
      const { processTree } = await import('${folder}/process-tree.js');
      const { childrenOf, processesWithArgument } = await import('${folder}/process-identity.js');
      const child = (await import('node:child_process')).spawn('sleep', ['60']);
      const found = [await processTree(process.pid), childrenOf(process.pid), processesWithArgument((word) => word === '60')];
      console.log(JSON.stringify(found.map((pids) => pids.filter((pid) => pid === child.pid).length)));
      child.kill();`;
      const script = `mount -t proc -o hidepid=${hidepid} proc /proc; exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"`;
      const argv = [process.execPath, '--input-type=module', '-e', look];
      const { stdout } = await promisify(execFile)('unshare', [...alone, 'sh', '-c', script, 'sh', ...argv]);
      expect(JSON.parse(stdout)).toEqual([1, 1, 1]);
    } finally {
      rmSync(folder, { recursive: true });
    }
  },
);
