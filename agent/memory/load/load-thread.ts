/** Entry of a loading thread: runs its share of each load that it is told of, until it is told to end. */

import { type MessagePort, workerData } from 'node:worker_threads';
import { giveWay } from '../../../host/niceness.ts';
import { loadGgml } from '../../../native/ggml.ts';
import type { LoadWork } from './load-work.ts';
import { load_niceness } from './niceness.ts';
import { UnitLoader } from './unit-loader.ts';

giveWay(load_niceness);
const { port, folder } = workerData as { port: MessagePort; folder: string };
const loader = new UnitLoader(loadGgml(folder));
port.on('message', (work: LoadWork | 'end') => {
  if (work !== 'end') return loader.run(work);
  loader.free();
  port.close();
});
