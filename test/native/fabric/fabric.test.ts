import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { afterEach, expect, it } from 'vitest';
import { compiledFile } from '../../../host/programs.ts';
import { FabricEnd, fabricAbsence, fabricVersion, probe_bytes } from '../../../native/fabric/fabric.ts';
import type { MemoryCopy } from '../../../native/fabric/memory.ts';
import { TestMemory } from './support.ts';

const patience = { silence_ms: 3000, limit_ms: 10_000 };
const mebibyte = 1024 * 1024;
const opened: (() => unknown)[] = [];

afterEach(async () => {
  for (const close of opened.splice(0).reverse()) await close();
});

async function ends(provider: string) {
  const source = provider === 'shm' ? '' : '127.0.0.1';
  const made = [];
  for (const seed of [1, 0]) {
    const memory = new TestMemory(8);
    if (seed) memory.fill(seed);
    const end = await FabricEnd.open(provider, source, memory);
    opened.push(
      () => memory.free(),
      () => end.close(),
    );
    made.push({ memory, end });
  }
  return made as [(typeof made)[0], (typeof made)[0]];
}

const present = it.skipIf(fabricAbsence() !== undefined);

present.each(['tcp', 'shm'])('writes scattered pieces into a peer’s memory by %s', async (provider) => {
  expect(Number.parseFloat(fabricVersion())).toBeGreaterThanOrEqual(1.14);
  const [source, target] = await ends(provider);
  expect(target.end.provider).toContain(provider);
  await source.end.connect(target.end.address);
  const probe = randomBytes(probe_bytes);
  await source.end.probe(probe, 3000);
  expect(Buffer.compare(target.end.probed(), probe)).toBe(0);
  target.end.expect(true);
  const copies: MemoryCopy[] = Array.from({ length: 64 }, (_, at) => ({
    from: at * 65_537,
    to: (63 - at) * 70_000 + 11,
    bytes: 60_001,
  }));
  const large = { from: 0, to: 5 * mebibyte, bytes: 3 * mebibyte };
  await source.end.write(copies, target.memory.bytes, patience);
  await source.end.write([large], target.memory.bytes, patience);
  for (const { from, to, bytes } of [...copies.filter(({ to, bytes }) => to + bytes < large.to), large])
    expect(
      Buffer.compare(
        target.memory.view.subarray(to, to + bytes),
        source.memory.view.subarray(from, from + bytes),
      ),
    ).toBe(0);
});

present('ends in order with a process that has left ends open in a thread', () => {
  const program = compiledFile('test/native/fabric/left-open.js');
  for (let count = 0; count < 3; count++) {
    const { status, signal, stderr } = spawnSync(process.execPath, [program], { encoding: 'utf8' });
    expect({ status, signal }, stderr).toEqual({ status: 0, signal: null });
  }
});

present('refuses what lies outside either memory', async () => {
  const [source, target] = await ends('tcp');
  await source.end.connect(target.end.address);
  for (const copy of [
    { from: 8 * mebibyte - 1, to: 0, bytes: 2 },
    { from: 0, to: 8 * mebibyte - 1, bytes: 2 },
    { from: 0, to: -1, bytes: 2 },
  ])
    await expect(source.end.write([copy], target.memory.bytes, patience)).rejects.toMatchObject({
      code: 'EINVAL',
    });
});

present('a key that was not told opens nothing, and the end is closed', async () => {
  const [source, target] = await ends('tcp');
  const { name, numbers } = target.end.address;
  numbers[0] = numbers[0]! ^ 1n;
  await source.end.connect({ name, numbers });
  const copy = { from: 0, to: 0, bytes: 4096 };
  await expect(source.end.write([copy], target.memory.bytes, patience)).rejects.toThrow();
  expect(source.end.words()).not.toBe('');
  expect(target.memory.view.subarray(0, 4096).every((byte) => byte === 0)).toBe(true);
  await expect(source.end.write([copy], target.memory.bytes, patience)).rejects.toMatchObject({
    code: 'ENOTCONN',
  });
});

present('a peer that is gone is given up in time, and what was posted is over then', async () => {
  const [source, target] = await ends('tcp');
  const { address } = target.end;
  await target.end.close();
  await source.end.connect(address);
  const started_ms = performance.now();
  const copy = { from: 0, to: 0, bytes: mebibyte };
  const impatient = { silence_ms: 500, limit_ms: 1000 };
  await expect(source.end.write([copy], 8 * mebibyte, impatient)).rejects.toThrow();
  expect(performance.now() - started_ms).toBeLessThan(1500);
});

present('a provider that is not here says so in libfabric’s words', async () => {
  const memory = new TestMemory(2);
  await expect(FabricEnd.open('cxi', '', memory)).rejects.toThrow('fi_getinfo');
  memory.free();
});
