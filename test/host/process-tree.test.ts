import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { ownMemoryOf } from '../../host/process-tree.ts';

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
