import { statSync } from 'node:fs';
import { expect, test } from 'vitest';
import { fileVersion } from '../../../../agent/memory/file-version.ts';
import { LoadCounters, type LoadWork } from '../../../../agent/memory/load/load-work.ts';
import { OpenModelFile } from '../../../../agent/memory/load/open-model-file.ts';
import { TensorLoading } from '../../../../agent/memory/load/tensor-loading.ts';
import { model } from '../../engine/support.ts';

/** @param end what other threads do when the one that looks after the load ends its share */
async function newLoading(end: (counters: LoadCounters) => void) {
  const path = await model('tiny-llama', 'Q8_0');
  const version = fileVersion(path, statSync(path, { bigint: true }));
  const source = new OpenModelFile(version, { mapped: false, direct: false });
  const counters = new LoadCounters();
  const work: LoadWork = {
    descriptor: source.descriptor,
    path,
    size_bytes: Number(version.size_bytes),
    layouts: [],
    upload: undefined,
    units: [[]],
    counters: counters.shared,
  };
  let hung = 0;
  const loading = new TensorLoading({
    source,
    work,
    start: () => ({ step: () => false, end: () => end(counters) }),
    fetching: undefined,
    onProgress: () => undefined,
    onDirectRefused: () => undefined,
    onHang: () => void hung++,
  });
  return { loading, counters, hung: () => hung };
}

test('a load that is given up is let go of, even where a thread is told of it only then', async () => {
  const { loading, counters } = await newLoading((late) => late.enter());
  expect(loading.cancel()).toBe(true);
  expect(counters.active).toBe(1);
  expect(counters.take(1)).toBeUndefined();
});

test('a load that is given up with a thread in a read is not let go of', async () => {
  // The thread comes back a little later than anybody waits for it: what was told is not taken back.
  const { loading, counters } = await newLoading((late) => late.leave());
  counters.enter();
  expect(loading.cancel()).toBe(false);
  expect(counters.active).toBe(0);
});
