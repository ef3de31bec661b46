/** Entry of a loading thread: runs its share of each load that it is told of, until it is told to end. */
import { setPriority } from 'node:os';
import { type MessagePort, workerData } from 'node:worker_threads';
import { loadGgml } from '../../../native/ggml.ts';
import type { LoadWork } from './load-work.ts';
import { UnitLoader } from './unit-loader.ts';

/**
 * Niceness of loading threads. They may share cores with threads that compute and meet at barriers: whoever decodes goes
 * first. Lower: loads go faster beside decoding; higher: decoding is disturbed less.
 */
const load_niceness = 5;

// To Linux, a process id of 0 is the calling thread.
setPriority(0, load_niceness);
const { port, folder } = workerData as { port: MessagePort; folder: string };
const loader = new UnitLoader(loadGgml(folder));
port.on('message', (work: LoadWork | 'end') => {
  if (work !== 'end') return loader.run(work);
  loader.free();
  port.close();
});
