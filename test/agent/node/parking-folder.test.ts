/** Which folder of a node KV may wait in, and what is said of those that it may not. */
import { existsSync, mkdtempSync, realpathSync, rmSync, statfsSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { parkingFolder } from '../../../agent/node/parking-folder.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';

const folder = realpathSync(mkdtempSync(join(tmpdir(), 'hpcserve-parking-folder-')));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const mountAt = (mount_point: string, type: string) => [{ mount_point, type, root: '/', options: [] }];
const mountOf = (type: string) => () => mountAt(folder, type);
const local = mountOf('ext4');

function refusal(parking_dir: string, mounts = local, environment: NodeJS.ProcessEnv = {}): string {
  try {
    parkingFolder({ parking_dir }, environment, mounts);
  } catch (error) {
    if (!(error instanceof HpcserveError)) throw error;
    expect(error.code).toBe('E_WORKER_PARKING');
    return [error.message, ...error.because].join(': ');
  }
  return 'none';
}

test('there is none unless the site names one', () => {
  expect(parkingFolder({ parking_gb: 4 }, {}, local)).toBeUndefined();
});

test('it is what the job calls it, made where it is missing, and as large as the site and the disk allow', () => {
  const environment = { TMPDIR: folder };
  const found = parkingFolder({ parking_dir: '$TMPDIR/kv', parking_gb: 0.001 }, environment, local);
  expect(found).toEqual({ folder: join(folder, 'kv'), bytes_max: 1e6 });
  expect(statSync(found!.folder).mode & 0o777).toBe(0o700);
  const { bavail, bsize } = statfsSync(folder);
  const most = parkingFolder({ parking_dir: folder, parking_gb: 1e9 }, environment, local)!;
  // Others write and remove meanwhile.
  expect(most.bytes_max / (bavail * bsize)).toBeCloseTo(0.5, 1);
});

test.each([
  ['a filesystem of many nodes', 'lustre', /is on lustre, which other nodes mount, too$/],
  ['memory', 'tmpfs', /is on tmpfs, which takes the memory of the node$/],
])('%s is refused', (_, type, words) => {
  expect(refusal(folder, mountOf(type))).toMatch(words);
});

test('what is mounted only when somebody looks there is seen for what it is', () => {
  const automatic = join(folder, 'automatic');
  // As an automounter does it: nothing is there before the folder is asked for.
  const mounts = () => [...local(), ...(existsSync(automatic) ? mountAt(automatic, 'nfs4') : [])];
  expect(refusal(join(automatic, 'kv'), mounts)).toMatch(/is on nfs4, which other nodes mount, too$/);
});

test('what is no folder, or needs a name that the job does not have, is refused in the words of the system', () => {
  const file = join(folder, 'file');
  writeFileSync(file, '');
  expect(refusal(join(file, 'kv'))).toMatch(/sharing\.parking_dir.*ENOTDIR/);
  expect(refusal('$NO_SUCH_NAME/kv')).toMatch(/needs \$NO_SUCH_NAME, which is not set/);
});
