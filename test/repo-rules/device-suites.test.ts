/** The suites of `npm test -- --vulkan`: those that the device is held against, and none that only seems to use it. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import { deviceSuites, notOnDevice } from '../device-suites.ts';
import { longSuites } from '../turns.ts';

const chooser = 'test/agent/engine/test-backend.ts';
const listed = Object.keys(deviceSuites);

function filesIn(folder: string): string[] {
  const entries = readdirSync(join(packageRoot, folder), { recursive: true, encoding: 'utf8' });
  return entries.map((entry) => join(folder, entry)).filter((path) => path.endsWith('.ts'));
}

/** Of a suite, or of each in a folder. */
const suitesOf = (path: string): string[] =>
  path.endsWith('/') ? filesIn(path).filter((file) => file.endsWith('.test.ts')) : [path];

/** The files of `test/` that one imports, at whatever distance, and itself. */
function reached(path: string, known = new Set<string>()): Set<string> {
  if (known.has(path)) return known;
  known.add(path);
  const text = readFileSync(join(packageRoot, path), 'utf8');
  for (const [, from] of text.matchAll(/^(?:import|export|\} from) (?!type )[^;]*?'(\.[^']+)';/gm)) {
    const file = join(dirname(path), from!);
    if (file.startsWith('test/') && file.endsWith('.ts')) reached(file, known);
  }
  return known;
}

const computesOnDevice = (suite: string): boolean =>
  [...reached(suite)].some(
    (file) => file === chooser || readFileSync(join(packageRoot, file), 'utf8').includes('= vulkanDevice()'),
  );

describe('suites on a device', () => {
  it('are there, and each of them can compute on it', () => {
    expect(
      [...listed, ...Object.keys(notOnDevice)].filter((path) => !existsSync(join(packageRoot, path))),
    ).toEqual([]);
    const folders = listed.filter((path) => path.endsWith('/'));
    for (const folder of folders) expect(suitesOf(folder).some(computesOnDevice), folder).toBe(true);
    const files = listed.filter((path) => !folders.includes(path));
    expect(files.filter((suite) => !computesOnDevice(suite))).toEqual([]);
    expect(computesOnDevice('test/agent/device-worker/compute/memory-pressure.test.ts')).toBe(false);
  });

  it('hold it against libllama, and show every way in which its memory is used', () => {
    expect(listed).toEqual(
      expect.arrayContaining([
        'test/agent/engine/reference.test.ts',
        'test/agent/engine/batch-invariant.test.ts',
        // Reuse and packing; KV; sharing; failover; preemption.
        'test/agent/memory/weight-pool.test.ts',
        'test/agent/memory/device-pool.test.ts',
        'test/agent/device-worker/sharing.test.ts',
        'test/failover/native.test.ts',
        'test/failover/worker.test.ts',
        'test/failover/preemption.test.ts',
      ]),
    );
  });

  it('compare three types with libllama in every run of the tests, short ones, too', () => {
    const suite = 'test/agent/backend/device/device-reference.test.ts';
    expect(existsSync(join(packageRoot, suite))).toBe(true);
    expect(Object.keys(longSuites)).not.toContain(suite);
  });

  it('are all that choose their backend by the device, but for those with a reason', () => {
    const choosing = filesIn('test').filter((file) => {
      const text = readFileSync(join(packageRoot, file), 'utf8');
      return file.endsWith('.test.ts') && /\btestBackend\(/.test(text);
    });
    const known = [...listed.flatMap(suitesOf), ...Object.keys(notOnDevice)];
    expect(choosing.length).toBeGreaterThan(5);
    expect(choosing.filter((file) => !known.includes(file))).toEqual([]);
  });
});
