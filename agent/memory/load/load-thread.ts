/** Entry of a loading thread: runs its share of each load that it is told of. */
import { type MessagePort, workerData } from 'node:worker_threads';
import { loadGgml } from '../../../native/ggml.ts';
import type { LoadWork } from './load-work.ts';
import { UnitLoader } from './unit-loader.ts';

const { port, folder } = workerData as { port: MessagePort; folder: string };
const loader = new UnitLoader(loadGgml(folder));
port.on('message', (work: LoadWork) => loader.run(work));
