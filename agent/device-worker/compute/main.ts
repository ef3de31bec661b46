/** Entry of the compute thread. */
import { type MessagePort, workerData } from 'node:worker_threads';
import { loadGgml } from '../../../native/ggml.ts';
import type { SharingSettings } from '../../../solver/sharing/settings.ts';
import { ContentHashCache } from '../../memory/content-hashes.ts';
import { DevicePool, type DevicePoolOptions } from '../../memory/device-pool.ts';
import { ComputeLoop } from './compute-loop.ts';

const { port, pulse, settings, step_ms_min, pool, hash_dir } = workerData as {
  port: MessagePort;
  pulse: Int32Array;
  settings: SharingSettings;
  step_ms_min: number;
  pool: Pick<DevicePoolOptions, 'pool_bytes' | 'threads' | 'peers_socket'>;
  hash_dir?: string;
};
let devicePool: DevicePool | undefined;
// With the first model, so that what is wrong with it is told as that model's error.
const poolOfDevice = (): DevicePool => {
  devicePool ??= DevicePool.largest(loadGgml(), {
    ...pool,
    ...(hash_dir !== undefined && { content_hashes: new ContentHashCache(hash_dir) }),
  });
  return devicePool;
};
new ComputeLoop(port, pulse, poolOfDevice, settings, step_ms_min).run();
await devicePool?.close();
port.close();
