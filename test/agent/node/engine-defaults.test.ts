import type { NetworkInterfaceInfo } from 'node:os';
import { expect, test } from 'vitest';
import { environmentDefaults } from '../../../agent/node/engine-defaults.ts';
import { engineEnvironment } from '../../../agent/node/engine-start.ts';
import { unitOf } from '../support.ts';

const at = (address: string): NetworkInterfaceInfo[] => [
  { address, family: 'IPv4', netmask: '', mac: '', internal: false, cidr: null },
];
const interfaces = {
  lo: at('127.0.0.1'),
  eth0: at('10.0.0.5'),
  hsn0: at('10.9.0.5'),
  ib0: at('10.8.0.5'),
  ib1: at('10.8.1.5'),
};
const split = unitOf({ name: 'm' }, { engine: 'vllm', tensor: 4 });
const place = { address: '10.9.0.5' };

test('no engine asks the hub: its model is there, and a node may have no way out', () => {
  const one = unitOf({ name: 'm' }, { engine: 'sglang' });
  expect(environmentDefaults(one, {}, interfaces)).toEqual({
    HF_HUB_OFFLINE: '1',
    HF_HUB_DISABLE_TELEMETRY: '1',
  });
});

test('ranks meet on loopback, over nodes where the agent is reached or where the site says', () => {
  const names = (where: Parameters<typeof environmentDefaults>[1]) => {
    const { NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME } = environmentDefaults(split, where, interfaces);
    return [NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME];
  };
  expect(names({})).toEqual(['lo', 'lo']);
  expect(names({ engine_interfaces: ['ib0'] })).toEqual(['lo', 'lo']);
  expect(names({ place })).toEqual(['hsn0', 'hsn0']);
  expect(names({ place, engine_interfaces: ['ib0', 'ib1'] })).toEqual(['ib0,ib1', 'ib0,ib1']);
  // A node that has not all of them, or none.
  expect(names({ place, engine_interfaces: ['ib0', 'ib1', 'ib2', 'ib3'] })).toEqual(['ib0,ib1', 'ib0,ib1']);
  expect(names({ place, engine_interfaces: ['ib7'] })).toEqual(['hsn0', 'hsn0']);
  expect(names({ place: { address: '192.0.2.1' } })).toEqual([undefined, undefined]);
});

test('what the job or the model says is stronger', () => {
  const unit = { ...split, model: { ...split.model, environment: { HF_HUB_OFFLINE: '0' } } };
  const group = { devices: [] } as unknown as Parameters<typeof engineEnvironment>[1]['group'];
  const environment = engineEnvironment(unit, {
    group,
    environment: { GLOO_SOCKET_IFNAME: 'eth9' },
    physical_cores: () => [],
  });
  expect(environment).toMatchObject({
    HF_HUB_OFFLINE: '0',
    GLOO_SOCKET_IFNAME: 'eth9',
    NCCL_SOCKET_IFNAME: 'lo',
  });
});
