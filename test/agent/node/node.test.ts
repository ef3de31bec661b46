import type { NetworkInterfaceInfo } from 'node:os';
import { describe, expect, test } from 'vitest';
import { chooseAddresses } from '../../../agent/node/network-address.ts';
import { RestartPolicy } from '../../../agent/node/restart-policy.ts';
import { nodeIdentity } from '../../../agent/node/slurm-environment.ts';

function address(cidr: string, internal = false): NetworkInterfaceInfo {
  const [host] = cidr.split('/');
  const base = { address: host!, netmask: '', mac: '', internal, cidr };
  return host!.includes(':') ? { ...base, family: 'IPv6', scopeid: 0 } : { ...base, family: 'IPv4' };
}

describe('which address is announced', () => {
  const interfaces = {
    lo: [address('127.0.0.1/8', true), address('::1/128', true)],
    eth0: [address('10.1.0.7/16'), address('fe80::7/64')],
    hsn0: [address('172.28.4.9/16'), address('2001:db8::9/64')],
  };

  test.each([
    ['hsn0', ['172.28.4.9', '2001:db8::9'], '::'],
    ['10.1.0.0/16', ['10.1.0.7'], '10.1.0.7'],
    ['2001:db8::/32', ['2001:db8::9'], '2001:db8::9'],
  ])('the network %s of the site config', (network, announced, listen) => {
    expect(chooseAddresses(interfaces, { network, loopback: false, routed: '10.1.0.7' })).toEqual({
      announced,
      listen,
    });
  });

  test.each(['ib0', '192.168.0.0/16', '10.1.0.0/99', '10.1.0.0'])(
    '%s, which this node does not have',
    (network) => {
      expect(() => chooseAddresses(interfaces, { network, loopback: true })).toThrow(
        expect.objectContaining({ code: 'E_AGENT_NETWORK' }),
      );
    },
  );

  test('loopback on the local site', () => {
    expect(chooseAddresses(interfaces, { loopback: true })).toEqual({
      announced: ['127.0.0.1'],
      listen: '127.0.0.1',
    });
  });

  test('else the one that routes to where the job came from, then the others; never link-local ones', () => {
    expect(chooseAddresses(interfaces, { loopback: false, routed: '172.28.4.9' })).toEqual({
      announced: ['172.28.4.9', '10.1.0.7', '2001:db8::9'],
      listen: '::',
    });
    const ipv4 = { eth0: interfaces.eth0, eth1: [address('10.2.0.1/16')] };
    expect(chooseAddresses(ipv4, { loopback: false }).listen).toBe('0.0.0.0');
  });
});

describe('who this node is', () => {
  test('in a Slurm step', () => {
    const environment = {
      SLURM_JOB_ID: '42',
      SLURM_NODEID: '3',
      SLURMD_NODENAME: 'nid0007',
      SLURM_JOB_END_TIME: '1700000000',
    };
    const first = {
      node: 'nid0007',
      hostname: 'nid0007.site',
      node_index: 3,
      job_id: '42',
      job_end_time_ms: 1_700_000_000_000,
      restart_count: 0,
    };
    expect(nodeIdentity(environment, {}, 4, 'nid0007.site')).toEqual(first);
    const again = { ...environment, SLURM_RESTART_COUNT: '2' };
    expect(nodeIdentity(again, {}, 4, 'nid0007.site')).toEqual({ ...first, restart_count: 2 });
  });

  test('in a task of a job array, by the name that people know it by', () => {
    const environment = { SLURM_JOB_ID: '44', SLURM_ARRAY_JOB_ID: '42', SLURM_ARRAY_TASK_ID: '1' };
    expect(nodeIdentity(environment, {}, 1, 'n1').job_id).toBe('42_1');
  });

  test('on the local site, where several agents are on one host', () => {
    expect(nodeIdentity({}, { node_index: 1 }, 2, 'laptop').node).toBe('laptop-1');
    expect(nodeIdentity({}, {}, 1, 'laptop')).toEqual({ node: 'laptop', hostname: 'laptop', node_index: 0 });
    expect(nodeIdentity({}, { node: '../x y' }, 1, 'laptop').node).toBe('.._x_y');
  });
});

test('restarts are few, ever later, and forgiven after a while', () => {
  const policy = new RestartPolicy({ most: 3, window_ms: 1000, first_pause_ms: 10 });
  expect([policy.next(0), policy.next(100), policy.next(200), policy.next(300)]).toEqual([
    10,
    40,
    160,
    undefined,
  ]);
  expect(policy.next(1150)).toBe(40); // those of 0 and 100 are out of the window
});
