/** A fragmented cluster (FlexPipe §3.1): devices on which others compute, with what they leave of memory and time. */
import type { ResourceGraph } from '../locality/resource-graph.ts';
import { seededRandom } from '../simulator/random.ts';

export interface FragmentedDevice {
  id: string;
  server: string;
  /** Of its memory that others leave. */
  memory_bytes_free: number;
  /** Share of its memory that others leave. */
  memory_share_free: number;
  /** Share of its time that others take: a stage on it is slower by 1 / (1 − busy). */
  busy: number;
}

export interface FragmentOptions {
  servers: number;
  devices: number;
  memory_bytes: number;
  seed: number;
}

/** From so much free memory on a device counts as whole (§3.1). */
export const whole_device_share = 0.85;

/**
 * Quantiles of memory utilization in cluster C1 (Table 1: P50 28.78 %, P95 99.09 %, mean 43.48 %) with 8.7 % of
 * devices below 15 % (§3.1); a line between the points has a mean of 43.9 %.
 */
const memory_quantiles: readonly (readonly [share: number, used: number])[] = [
  [0, 0.1],
  [0.087, 0.15],
  [0.5, 0.2878],
  [0.95, 0.9909],
  [1, 1],
];

/** Of SM utilization (Table 1, C1: P50 9.16 %, P95 80.53 %, 31.26 % of devices from 10 to 30 %, mean 16.91 %). */
const busy_quantiles: readonly (readonly [share: number, used: number])[] = [
  [0, 0],
  [0.5, 0.0916],
  [0.52, 0.1],
  [0.83, 0.3],
  [0.95, 0.8053],
  [1, 1],
];

export interface FragmentedCluster {
  devices: readonly FragmentedDevice[];
  graph: ResourceGraph;
}

/** A device has the same quantile of both: who leaves little memory leaves little time. Table 1 does not tell. */
export function fragmentedCluster(options: FragmentOptions): FragmentedCluster {
  const { servers, devices, memory_bytes, seed } = options;
  const random = seededRandom(seed);
  const rackOf = (server: number): string => `rack-${Math.floor(server / 8)}`;
  return {
    devices: Array.from({ length: devices }, (_, index) => {
      const share = random();
      const used = quantileOf(memory_quantiles, share);
      return {
        id: `device-${index}`,
        server: `server-${index % servers}`,
        memory_bytes_free: memory_bytes * (1 - used),
        memory_share_free: 1 - used,
        busy: Math.min(0.95, quantileOf(busy_quantiles, share)),
      };
    }),
    graph: {
      // §9: 100 Gbit/s between servers; storage and PCIe of A100 servers are not told.
      storage_bytes_per_s: 100e9,
      rack_bytes_per_s: 8 * 12.5e9,
      servers: Array.from({ length: servers }, (_, server) => ({
        id: `server-${server}`,
        rack: rackOf(server),
        link_bytes_per_s: 25e9,
      })),
    },
  };
}

function quantileOf(points: typeof memory_quantiles, share: number): number {
  let right = 1;
  while (points[right]![0] < share) right++;
  const [[x0, y0], [x1, y1]] = [points[right - 1]!, points[right]!];
  return y0 + ((y1 - y0) * (share - x0)) / (x1 - x0);
}
