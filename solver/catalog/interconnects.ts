/** Networks between nodes, for tensor groups and pipelines that leave one. */
import type { NodeKindOffer } from '../../spec/plan.ts';

export interface Interconnect {
  name: string;
  /** Bytes per second of one port, one direction. */
  bandwidth_bytes_per_s: number;
  /** Half a round trip of a small message between two hosts. */
  latency_s: number;
  source: string;
}

const gbit = 1e9 / 8;
export const interconnects: readonly Interconnect[] = [
  {
    name: 'slingshot-11',
    bandwidth_bytes_per_s: 200 * gbit,
    latency_s: 2e-6,
    source: 'HPE Slingshot 11 (200 Gbit/s per NIC); latency: De Sensi et al., SC20',
  },
  {
    name: 'slingshot-10',
    bandwidth_bytes_per_s: 100 * gbit,
    latency_s: 2e-6,
    source: 'HPE Slingshot 10; latency: De Sensi et al., SC20',
  },
  {
    name: 'infiniband-edr',
    bandwidth_bytes_per_s: 100 * gbit,
    latency_s: 1.5e-6,
    source: 'NVIDIA ConnectX-5 product brief',
  },
  {
    name: 'infiniband-hdr',
    bandwidth_bytes_per_s: 200 * gbit,
    latency_s: 1.3e-6,
    source: 'NVIDIA ConnectX-6 product brief',
  },
  {
    name: 'infiniband-ndr',
    bandwidth_bytes_per_s: 400 * gbit,
    latency_s: 1.3e-6,
    source: 'NVIDIA ConnectX-7 product brief',
  },
  {
    name: 'infiniband-xdr',
    bandwidth_bytes_per_s: 800 * gbit,
    latency_s: 1.3e-6,
    source: 'NVIDIA ConnectX-8 product brief',
  },
  {
    name: 'efa-400',
    bandwidth_bytes_per_s: 400 * gbit,
    latency_s: 15e-6,
    source: 'AWS p4d instance page; latency: libfabric fabtests over SRD',
  },
  {
    name: 'ethernet-100',
    bandwidth_bytes_per_s: 100 * gbit,
    latency_s: 10e-6,
    source: 'IEEE 802.3; latency of kernel TCP on one switch',
  },
  {
    name: 'ethernet-10',
    bandwidth_bytes_per_s: 10 * gbit,
    latency_s: 30e-6,
    source: 'IEEE 802.3; latency of kernel TCP on one switch',
  },
];

/**
 * What is assumed of a network of which a site config says the kind alone: of each kind the generation that is common,
 * of Ethernet the slow one, since it is also what stands for a network of which nothing is said.
 */
export const assumedInterconnects: Readonly<Record<NonNullable<NodeKindOffer['interconnect']>, string>> = {
  ethernet: 'ethernet-10',
  infiniband: 'infiniband-hdr',
  slingshot: 'slingshot-11',
  efa: 'efa-400',
  // 100 Gbit/s, as EDR has.
  omnipath: 'infiniband-edr',
  none: 'ethernet-10',
};
