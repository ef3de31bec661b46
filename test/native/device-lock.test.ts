/** Locks of devices: where they lie, and what keeps them from being locks. */
import { mkdirSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { constants } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { type DeviceLocks, deviceHolder, holdDevice, nodeLocks } from '../../native/device-lock.ts';
import { scratchFolder } from '../mesh/support.ts';

const tmpdir_before = process.env.TMPDIR;
afterEach(() => {
  if (tmpdir_before === undefined) delete process.env.TMPDIR;
  else process.env.TMPDIR = tmpdir_before;
});
const folder_name = `hpcserve-devices-${process.getuid!()}`;
const taken = expect.objectContaining({ code: 'E_DEVICE_TAKEN' });

test('a device is one for all processes of the node, whatever their $TMPDIR', async () => {
  await using scratch = await scratchFolder();
  const identity = `test-${process.pid}-tmpdir`;
  process.env.TMPDIR = scratch.path;
  const release = holdDevice(identity, 'it', expect.unreachable, nodeLocks({}));
  process.env.TMPDIR = join(scratch.path, 'other');
  expect(() => holdDevice(identity, 'it', expect.unreachable, nodeLocks({}))).toThrow(taken);
  expect(deviceHolder(identity, nodeLocks({}))).toBe(process.pid);
  release();
  expect(deviceHolder(identity, nodeLocks({}))).toBeUndefined();
  holdDevice(identity, 'it', expect.unreachable, nodeLocks({}))();
});

test('nodes that have the folder in common are told apart', async () => {
  await using scratch = await scratchFolder();
  const locks = nodeLocks({ HPCSERVE_DEVICE_LOCKS: scratch.path });
  const release = holdDevice('a', 'it', expect.unreachable, locks);
  const other = { ...locks, boot_id: 'another' };
  expect(deviceHolder('a', other)).toBeUndefined();
  holdDevice('a', 'it', expect.unreachable, other)();
  expect(() => holdDevice('a', 'it', expect.unreachable, locks)).toThrow(taken);
  release();
  expect(statSync(join(scratch.path, folder_name)).mode & 0o777).toBe(0o700);
});

test('where there can be no lock, the device is used without, and that is told', async () => {
  await using scratch = await scratchFolder();
  const told: string[] = [];
  const use = (locks: DeviceLocks): string => {
    holdDevice('a', 'the GPU', (text) => told.push(text), locks)();
    return told.pop() ?? '';
  };
  const locks = nodeLocks({ HPCSERVE_DEVICE_LOCKS: scratch.path });
  expect(use({ ...locks, lock: () => constants.errno.ENOSYS })).toMatch(
    /nothing keeps another worker from the GPU: .*cannot be locked \(ENOSYS\)/,
  );
  expect(() => use({ ...locks, lock: () => constants.errno.EAGAIN })).toThrow(taken);
  const file = join(scratch.path, 'file');
  writeFileSync(file, '');
  expect(use({ ...locks, parents: [file] })).toMatch(/ENOTDIR/);

  const foreign = join(scratch.path, 'foreign');
  mkdirSync(join(foreign, 'elsewhere'), { recursive: true });
  symlinkSync('elsewhere', join(foreign, folder_name));
  expect(use({ ...locks, parents: [foreign] })).toMatch(/is no folder of this user/);
  // The next place serves.
  expect(use({ ...locks, parents: [file, foreign, scratch.path] })).toBe('');
});
