/**
 * A process that takes a folder lock and does as it is told: `acquire MS [shared]`, `assert`, `release` on its input, one answer a
 * line on its output. With a second argument it contends instead: again and again it takes the lock, for as many
 * milliseconds, and looks with a mark in that folder whether anybody else is in the section too.
 */
import { closeSync, openSync, readFileSync, rmSync, writeSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { FolderLock } from '../../dist/host/folder-lock.js';

const [path, times, mark, contend_ms] = process.argv.slice(2);
const say = (word, facts = {}) => process.stdout.write(`${JSON.stringify({ word, ...facts })}\n`);
const options = (timeout_ms) => ({
  command: 'test',
  timeout_ms,
  times: JSON.parse(times),
  error: ({ kind, holder }) => Object.assign(new Error(kind), { kind, pid: holder?.pid, host: holder?.host }),
  onLost: (reason) => say('onLost', { reason }),
});

/** @returns whether another process that lives is in the section */
function enter() {
  try {
    const file = openSync(mark, 'wx');
    writeSync(file, `${process.pid}`);
    closeSync(file);
    return false;
  } catch (error) {
    if (error.code !== 'EEXIST') throw error;
    const pid = Number(readFileSync(mark, 'utf8'));
    let lives = true;
    try {
      if (pid > 0) process.kill(pid, 0);
    } catch {
      lives = false;
    }
    if (lives) return true;
    // Of one that was killed there.
    rmSync(mark, { force: true });
    return enter();
  }
}

if (contend_ms !== undefined) {
  const end_ms = performance.now() + Number(contend_ms);
  let rounds = 0;
  let together = 0;
  while (performance.now() < end_ms) {
    const lock = await FolderLock.acquire(path, options(120_000));
    lock.assertHeld();
    if (enter()) together++;
    await sleep(Math.random() * 20);
    rmSync(mark, { force: true });
    lock.release();
    rounds++;
  }
  say('contended', { rounds, together });
  process.exit(0);
}

let lock;
const orders = {
  acquire: async (timeout_ms, shared) => {
    lock = await FolderLock.acquire(path, { ...options(Number(timeout_ms)), shared: shared === 'shared' });
    say('held');
  },
  assert: () => {
    lock.assertHeld();
    say('asserted');
  },
  release: () => {
    lock.release();
    say('released');
  },
};
for await (const line of createInterface({ input: process.stdin })) {
  const [order, ...words] = line.split(' ');
  try {
    await orders[order](...words);
  } catch (error) {
    if (error.kind === undefined) say('failed', { message: error.message });
    else say(error.kind, { pid: error.pid, host: error.host });
  }
}
