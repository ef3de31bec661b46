/** Entry of the compute thread. */

import { workerData } from 'node:worker_threads';
import { loadGgml } from '../../../native/ggml.ts';
import { cpuBackend } from '../../backend/cpu/cpu-backend.ts';
import { deviceBackend } from '../../backend/device/device-backend.ts';
import { ParkingDisk } from '../../engine/parking-disk.ts';
import { ContentHashCache } from '../../memory/content-hashes.ts';
import { DevicePool, type DevicePoolOptions } from '../../memory/device-pool.ts';
import { ComputeLoop } from './compute-loop.ts';
import type { ComputeThreadData, FromCompute } from './messages.ts';

const { port, pulse, settings, step_ms_min, pool, hash_dir, ggml_device, streaming, parking, fabrics } =
  workerData as ComputeThreadData;
const disk = parking && new ParkingDisk(parking.folder, parking.bytes_max);
let devicePool: DevicePool | undefined;
// With the first model, so that what is wrong with it is told as that model's error.
const poolOfDevice = (): DevicePool => {
  if (devicePool) return devicePool;
  const options: DevicePoolOptions = { ...pool, disk };
  if (hash_dir !== undefined) options.content_hashes = new ContentHashCache(hash_dir);
  const ggml = loadGgml();
  const backend = ggml_device === undefined ? cpuBackend(ggml) : deviceBackend(ggml, ggml_device);
  devicePool = DevicePool.largest(backend, options);
  const { cut } = devicePool;
  if (cut) port.postMessage({ type: 'pool_cut', error: cut.toJSON() } satisfies FromCompute);
  return devicePool;
};
await new ComputeLoop(port, pulse, poolOfDevice, settings, step_ms_min, { streaming, disk, fabrics }).run();
await devicePool?.close();
port.close();
