/**
 * A process that ends while a thread of it has ends of a fabric: one that was written to, one that writes, and one that
 * is on its way. As rings of a device worker that is told to end.
 */

import { fileURLToPath } from 'node:url';
import { isMainThread, parentPort, Worker } from 'node:worker_threads';
import { FabricEnd } from '../../../native/fabric/fabric.ts';
import { TestMemory } from './support.ts';

const host = '127.0.0.1';

if (isMainThread) {
  const worker = new Worker(fileURLToPath(import.meta.url));
  worker.once('message', () => process.exit(0));
} else {
  const [from, to, other] = [new TestMemory(8), new TestMemory(8), new TestMemory(8)];
  const source = await FabricEnd.open('tcp', host, from);
  const target = await FabricEnd.open('tcp', host, to);
  await source.connect(target.address);
  const all = [{ from: 0, to: 0, bytes: to.bytes }];
  await source.write(all, to.bytes, { silence_ms: 3000, limit_ms: 10_000 });
  void source.write(all, to.bytes, { silence_ms: 3000, limit_ms: 10_000 });
  void FabricEnd.open('tcp', host, other);
  parentPort!.postMessage('open');
  // Not over before its process is.
  setInterval(() => undefined, 1000);
}
