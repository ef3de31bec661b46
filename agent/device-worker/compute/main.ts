/** Entry of the compute thread. */
import { type MessagePort, workerData } from 'node:worker_threads';
import { openEngine } from '../../engine/index.ts';
import { ComputeLoop } from './compute-loop.ts';

const { port, pulse, step_ms_min } = workerData as {
  port: MessagePort;
  pulse: Int32Array;
  step_ms_min: number;
};
new ComputeLoop(port, pulse, openEngine, step_ms_min).run();
port.close();
