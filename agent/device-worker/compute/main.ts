/** Entry of the compute thread. */
import { type MessagePort, workerData } from 'node:worker_threads';
import { openEngine } from '../../engine/index.ts';
import { ComputeLoop } from './compute-loop.ts';

const { port, signal } = workerData as { port: MessagePort; signal: Int32Array };
new ComputeLoop(port, signal, openEngine).run();
port.close();
