/** What is said of a device worker that ended or hung, and whether it is started again. */
import { expect, test } from 'vitest';
import type { ChildEnd } from '../../../agent/node/child.ts';
import { type EndedWorker, exitedWorker, hungWorker, toldEnd } from '../../../agent/node/worker-end.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';

const worker: EndedWorker = { devices: 'A100', log_file: '/log', has_served: true };
const deviceError = 'ggml_cuda_error: CUDA error: uncorrectable ECC error encountered';
const silent = new HpcserveError('E_REPLICA_SILENT', { what: 'it says nothing' });
const stuck = new HpcserveError('E_WORKER_STUCK', { what: 'its thread is stuck' });
const end: ChildEnd = {
  code: null,
  signal: 'SIGKILL',
  words: 'was killed',
  orderly: false,
  out_of_memory: false,
  oom_kills: false,
  last_lines: ['one'],
  tail: ['one'],
};

test('one that hangs, or whose device failed once, is started again', () => {
  const failed = new HpcserveError('E_DEVICE_FAILED', { what: 'a graph failed' });
  const told = [toldEnd(stuck, ['one'], worker), toldEnd(failed, ['one'], worker)];
  for (const hung of [hungWorker(silent, ['one'], worker), ...told])
    expect([hung.restartable, hung.fatal]).toEqual([true, undefined]);
  expect(exitedWorker(end, worker, stuck)).toMatchObject({ restartable: true, error: stuck });
});

test('one that hangs after a device error has a device that failed', () => {
  const hung = hungWorker(silent, ['one', deviceError], worker);
  expect(hung).toMatchObject({ restartable: false, fatal: 'device', error: silent });
  const ended = exitedWorker({ ...end, tail: ['one', deviceError] }, worker, undefined);
  expect(ended).toMatchObject({ restartable: false, fatal: 'device' });
});

test('one that never served is given up, and its device is not', () => {
  const before = { ...worker, has_served: false };
  expect(hungWorker(silent, [], before)).toMatchObject({ restartable: false, fatal: 'process' });
  expect(exitedWorker(end, before, undefined).restartable).toBe(false);
});

test('one that says itself why it cannot go on is given up', () => {
  const told = new HpcserveError('E_WORKER_COMPUTE', { what: 'an iteration failed' });
  expect(toldEnd(told, [], worker)).toMatchObject({ restartable: false, fatal: 'process', error: told });
});
