/** Time of all-reduces and of transfers between pipeline stages, by the α-β model of a link. */
import type { DeviceLink } from '../catalog/device-spec.ts';
import type { Interconnect } from '../catalog/interconnects.ts';
import type { DeviceConstants, EngineConstants } from './calibration.ts';

/**
 * All-reduce of `bytes` among `devices`: a ring moves 2(n−1)/n of the message over each link (Patarasuk and
 * Yuan, JPDC 2009); engines reduce small messages in one shot, every device reading all others' copies.
 * A group larger than the link's domain crosses the interconnect, which then sets the pace.
 */
export function allReduceTime_s(
  bytes: number,
  devices: number,
  link: DeviceLink,
  interconnect: Interconnect,
  device: DeviceConstants,
  one_shot_s: EngineConstants['one_shot_s'],
): number {
  if (devices <= 1) return 0;
  const crosses = devices > link.devices;
  const ringShare =
    device.ring_bandwidth +
    (device.ring_bandwidth_many - device.ring_bandwidth) * Math.min(1, (Math.log2(devices) - 1) / 2);
  const bandwidth =
    (crosses
      ? Math.min(interconnect.bandwidth_bytes_per_s, link.bandwidth_bytes_per_s)
      : link.bandwidth_bytes_per_s) * ringShare;
  const hops = crosses ? 2 * (Math.ceil(devices / link.devices) - 1) * interconnect.latency_s : 0;
  const ring =
    device.ring_s +
    device.ring_hop_s * (devices - 2) +
    hops +
    ((2 * (devices - 1)) / devices) * (bytes / bandwidth);
  if (crosses) return ring;
  const oneShot = one_shot_s + ((devices - 1) * bytes) / bandwidth;
  return Math.min(ring, oneShot);
}

/** One message from a pipeline stage to the next, on the link or over the interconnect. */
export function stageTransfer_s(
  bytes: number,
  link: DeviceLink,
  interconnect: Interconnect,
  crosses: boolean,
  device: DeviceConstants,
): number {
  return crosses
    ? interconnect.latency_s + bytes / interconnect.bandwidth_bytes_per_s
    : device.ring_s / 2 + bytes / (link.bandwidth_bytes_per_s * device.ring_bandwidth);
}
