import { afterAll, beforeAll, expect, test } from 'vitest';
import { parse } from 'yaml';
import { SlurmCommandClient } from '../../slurm/client.ts';
import { discoverSite } from '../../slurm/discover.ts';
import { renderSiteDraft } from '../../slurm/site-draft-yaml.ts';
import { siteSchema } from '../../spec/site.ts';
import { ClusterCommandRunner } from '../cluster/runner.ts';
import { acquireCluster, type ClusterLease } from '../cluster/shared.ts';

let lease: ClusterLease;
beforeAll(async () => {
  lease = await acquireCluster();
});
afterAll(async () => {
  await lease?.release();
});

test('a real cluster becomes a site config that fits the schema', async () => {
  const client = new SlurmCommandClient(new ClusterCommandRunner(lease.cluster));
  const draft = await discoverSite(client, {
    environment: { HOME: '/home/ada', USER: 'ada', SCRATCH: '/lustre/ada' },
    mounts: [
      { mount_point: '/', type: 'ext4' },
      { mount_point: '/home', type: 'nfs4' },
      { mount_point: '/lustre', type: 'lustre' },
    ],
    writableFolder: (path) => (path.startsWith('/home') || path.startsWith('/lustre') ? path : undefined),
  });
  const text = renderSiteDraft(draft);
  const site = siteSchema.parse(parse(text));
  expect(site.name).toBe(`hpcserve-${lease.cluster.state.name}`);
  expect(site.state_dir).toBe('~/.hpcserve');
  expect(site.scratch_dir).toBe('$SCRATCH/hpcserve');
  expect(site.slurm?.gpu_request).toMatchObject({ form: 'gres', with_type: true });
  expect(
    site.node_kinds.map((kind) => [kind.name, kind.partition, kind.tier, kind.max_time, kind.count]),
  ).toEqual([
    ['gh200', 'gh200', 'stable', '1-00:00:00', 2],
    ['a100', 'a100', 'stable', '1-00:00:00', 2],
    ['cpu', 'cpu', 'stable', '1-00:00:00', 2],
    ['gh200-scavenger', 'scavenge', 'scavenger', '04:00:00', 2],
    ['a100-scavenger', 'scavenge', 'scavenger', '04:00:00', 2],
    ['cpu-scavenger', 'scavenge', 'scavenger', '04:00:00', 2],
  ]);
  const [gh200, a100, cpu, , , scavengedCpu] = site.node_kinds;
  expect(gh200?.devices).toEqual([{ kind: 'gpu', model: 'GH200', count: 4, memory_gb: 96 }]);
  expect(gh200?.architecture).toBe('aarch64');
  expect(a100).toMatchObject({ gres_type: 'a100', cpus: 4, memory_gb: 34 });
  expect(cpu?.devices).toMatchObject([{ kind: 'cpu', count: 2, cores: 2 }]);
  expect(cpu?.features).toEqual([]);
  // In a mixed partition a node kind without GPUs needs a feature that only it has.
  expect(scavengedCpu?.features).toEqual(['sapphirerapids']);
  // Partitions this user may not use, or that are down, are not offered.
  expect(text).not.toContain('staff');
  expect(text).not.toContain('closed');
  expect(text).toContain('Preemptible (REQUEUE), 5 s grace.');
  expect(text).toContain('40 or 80 GB');
  expect(text).toContain('lustre');
});
