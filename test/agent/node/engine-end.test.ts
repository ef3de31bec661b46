/** What is said of an engine that ended, and whether it is started again. */
import { expect, test } from 'vitest';
import type { ChildEnd } from '../../../agent/node/child.ts';
import { type EndedEngine, exitedEngine, hungEngine } from '../../../agent/node/engine-end.ts';
import { unitOf } from '../support.ts';

const engine: EndedEngine = {
  unit: unitOf({ name: 'm' }),
  engine: 'vllm',
  version: '0.32.0',
  program: 'vllm',
  log_file: '/log',
  has_served: true,
};
const end: ChildEnd = {
  code: 1,
  signal: null,
  words: 'exited with code 1',
  orderly: false,
  out_of_memory: false,
  oom_kills: false,
  last_lines: ['one', 'two'],
  tail: ['one', 'two'],
};

test('a recorded failure: what happened, its line, and what to do; not the last lines', () => {
  const lines = ['torch.OutOfMemoryError: CUDA out of memory.', 'two'];
  const { error, fatal, restartable } = exitedEngine(
    { ...end, tail: lines, last_lines: lines },
    lines,
    engine,
  );
  expect(error.because).toEqual([
    'it exited with code 1',
    'the memory of the device is used up: torch.OutOfMemoryError: CUDA out of memory.',
  ]);
  expect(error.try.join()).toContain('max_sequences');
  expect([fatal, restartable]).toEqual(['process', false]);
});

test('while it starts the cause may stand far above the last lines', () => {
  const starting = { ...engine, has_served: false };
  const { error } = exitedEngine(end, ["ModuleNotFoundError: No module named 'x'", ...end.tail], starting);
  expect(error.because).toContain(
    "a package is missing where the engine is installed: ModuleNotFoundError: No module named 'x'",
  );
});

test('one that nobody has met before: its first exception, and the last lines', () => {
  const tail = ['OddError: x', 'two'];
  const { error, restartable } = exitedEngine({ ...end, tail, last_lines: tail }, tail, engine);
  expect(error.because).toEqual(['it exited with code 1', 'OddError: x', 'two']);
  expect(restartable).toBe(true);
});

test('a server that shuts down in order after its core died says why; one that was asked to end does not', () => {
  const tail = ['(Worker pid=3) ERROR 11-22 20:33:01 [x.py:1] RuntimeError: no such head', 'INFO: bye'];
  const orderly = { ...end, code: 0, words: 'exited with code 0', orderly: true, tail, last_lines: tail };
  expect(exitedEngine(orderly, tail, engine).error.because.slice(0, 2)).toEqual([
    'it exited with code 0',
    'RuntimeError: no such head',
  ]);
  const asked = { ...orderly, code: null, signal: 'SIGTERM' as const, words: 'was ended by SIGTERM' };
  expect(exitedEngine(asked, tail, engine).error.because).toEqual(['it was ended by SIGTERM', ...tail]);
});

test('a process of it that the kernel killed for want of memory', () => {
  const tail = ['Engine core proc EngineCore died unexpectedly, shutting down client.'];
  const { error, restartable } = exitedEngine(
    { ...end, oom_kills: true, tail, last_lines: tail },
    tail,
    engine,
  );
  expect(error.because[1]).toBe('the kernel ended a process of this job for want of memory');
  expect(error.try[0]).toContain('memory');
  expect(restartable).toBe(true);
});

test('a hang condemns no device, unless the engine says that the device failed', () => {
  const about = { tail: ['all is well'], pid: 7, is_gone: true };
  expect(hungEngine('it hangs', engine, about)).toMatchObject({ restartable: true, fatal: undefined });
  const tail = ['CUDA error: an illegal memory access was encountered'];
  expect(hungEngine('it hangs', engine, { ...about, tail })).toMatchObject({
    restartable: false,
    fatal: 'device',
  });
  // Its server lived on, and said that its core was killed: another start may do better.
  const dead = ['Engine core proc EngineCore died unexpectedly, shutting down client.'];
  const silent = hungEngine('/health answers 503', engine, { ...about, tail: dead });
  expect(silent).toMatchObject({ restartable: true, fatal: undefined });
  expect(silent.error.because[1]).toMatch(/^one of its processes was killed, or ended without a word: /);
  // What not even SIGKILL ends has its device still.
  const stuck = hungEngine('it hangs', engine, { ...about, is_gone: false });
  expect(stuck).toMatchObject({ restartable: false, fatal: 'process' });
  expect(stuck.error.because.join()).toContain('has not ended by that');
});

test('an engine whose processes did not answer each other in time is started again', () => {
  const tail = [
    '(EngineCore pid=9) ERROR 07-01 20:30:01 [core.py:1197] EngineCore encountered a fatal error.',
    '(EngineCore pid=9) ERROR 07-01 20:30:01 [core.py:1197] Traceback (most recent call last):',
    '(EngineCore pid=9) ERROR 07-01 20:30:01 [core.py:1197] TimeoutError',
    '(EngineCore pid=9) ERROR 07-01 20:30:01 [core.py:1197] The above exception was the direct cause of the following exception:',
    '(EngineCore pid=9) ERROR 07-01 20:30:01 [core.py:1197] TimeoutError: RPC call to execute_model timed out.',
    '(APIServer pid=8) ERROR 07-01 20:30:01 [async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.',
  ];
  const { error, fatal, restartable } = exitedEngine({ ...end, tail, last_lines: tail }, tail, engine);
  expect(error.because).toEqual([
    'it exited with code 1',
    'a process of the engine did not answer another one in time: TimeoutError: RPC call to execute_model timed out.',
  ]);
  expect([fatal, restartable]).toEqual([undefined, true]);
});
