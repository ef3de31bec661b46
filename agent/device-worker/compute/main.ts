/** Entry of the compute thread. */
import { type MessagePort, workerData } from 'node:worker_threads';
import type { SharingSettings } from '../../../solver/sharing/settings.ts';
import { openEngine } from '../../engine/index.ts';
import { ComputeLoop } from './compute-loop.ts';

const { port, pulse, settings, step_ms_min } = workerData as {
  port: MessagePort;
  pulse: Int32Array;
  settings: SharingSettings;
  step_ms_min: number;
};
new ComputeLoop(port, pulse, openEngine, settings, step_ms_min).run();
port.close();
