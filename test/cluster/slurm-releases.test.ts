/** Runs on other releases of Slurm: what is typed, what the page says afterwards, what slurm.conf has for which. */
import { describe, expect, it } from 'vitest';
import { parseTestArguments } from '../arguments.ts';
import { type SlurmRun, type SuiteResult, withSlurmRun } from '../slurm-table.ts';
import { ClusterHosts } from './hosts.ts';
import { type ClusterShape, clusterFolders } from './layout.ts';
import { cgroupConf, slurmConf } from './slurm-conf.ts';
import { atLeastRelease } from './slurm-folder.ts';

describe('npm test --', () => {
  it('takes releases, a Node and words of paths, in any order', () => {
    expect(parseTestArguments(['quote', '--slurm', '20.11,24.11', '--slurm=26.05', 'reconcile'])).toEqual({
      filters: ['quote', 'reconcile'],
      extent: 'short',
      releases: ['20.11', '24.11', '26.05'],
      node: undefined,
      vulkan: false,
      device: undefined,
    });
    expect(parseTestArguments(['--node', '22'])).toMatchObject({ node: '22', releases: [] });
  });

  it('says what it does not know', () => {
    expect(() => parseTestArguments(['--slurm', '19.05'])).toThrow(/19\.05; it can run 20\.11, 22\.05/);
    expect(() => parseTestArguments(['--node', 'latest'])).toThrow(/major version/);
    expect(() => parseTestArguments(['--slrum', '20.11'])).toThrow(/--slrum/);
  });
});

describe('the table of runs', () => {
  const empty =
    'before\n<!-- written by npm test -- --slurm: begin -->\n<!-- written by npm test -- --slurm: end -->\nafter\n';
  const client = 'test/slurm/client.e2e.test.ts';
  const chaos = 'test/e2e/chaos.e2e.test.ts';
  const run = (version: string, date: string, suites: Record<string, SuiteResult>): SlurmRun => ({
    version,
    debian: version.startsWith('24') ? 'trixie' : 'bullseye',
    suites: new Map(Object.entries(suites)),
    date,
  });
  const lines = (page: string): string[] => page.split('\n').filter((line) => /^\| /.test(line));
  const all = (): boolean => true;

  it('has a row for a suite, a column for a release, and the last run of each', () => {
    const failed = { passed: 3, failed: 2, skipped: 1 };
    const fine = { passed: 5, failed: 0, skipped: 0 };
    const first = withSlurmRun(empty, run('24.11.5', '2026-11-22', { [client]: failed, [chaos]: fine }), all);
    expect(lines(first)).toEqual([
      '| end-to-end suite | 24.11.5 (trixie) |',
      '| `e2e/chaos` | 5 passed; 2026-11-22 |',
      '| `slurm/client` | 3 passed, **2 failed**, 1 could not run; 2026-11-22 |',
    ]);
    const other = withSlurmRun(first, run('20.11.7', '2026-11-22', { [client]: fine }), all);
    const again = withSlurmRun(other, run('24.11.6', '2026-11-23', { [client]: fine }), all);
    expect(lines(again)).toEqual([
      '| end-to-end suite | 20.11.7 (bullseye) | 24.11.6 (trixie) |',
      '| `e2e/chaos` | – | 5 passed; 2026-11-22 |',
      '| `slurm/client` | 5 passed; 2026-11-22 | 5 passed; 2026-11-23 |',
    ]);
    expect(again).toMatch(/^before\n<!--[\s\S]*-->\nafter\n$/);
    const gone = withSlurmRun(again, run('24.11.6', '2026-11-24', {}), (suite) => suite !== chaos);
    expect(lines(gone)).toEqual(lines(again).filter((line) => !line.includes('chaos')));
  });

  it('is never put where there is no place for it', () => {
    expect(() => withSlurmRun('a page', run('24.11.5', '2026-11-22', {}), all)).toThrow(/has no lines/);
  });
});

describe('slurm.conf', () => {
  const input = (version: string, shape?: ClusterShape) => ({
    cluster_name: 'c',
    folders: clusterFolders('c', shape),
    ports: { slurmctld: 1, slurmd: {} },
    daemon_user: 'root',
    version,
    plugins: undefined,
    shape,
    hosts: undefined,
  });

  it('has what a release knows', () => {
    expect(['20.11.7', '22.05.8', '24.11.5'].map((version) => atLeastRelease(version, '22.05'))).toEqual([
      false,
      true,
      true,
    ]);
    expect(slurmConf(input('20.11.7'))).toContain('TaskPlugin=task/none\n');
    expect(slurmConf(input('24.11.5'))).not.toContain('TaskPlugin');
    expect(cgroupConf(input('20.11.7'))).not.toContain('CgroupPlugin');
    expect(slurmConf({ ...input('24.11.5'), plugins: '/p' })).toContain('PluginDir=/p\n');
  });

  it('is that of the shape, whose files jobs can see', () => {
    expect(slurmConf(input('22.05.8', 'linear'))).toMatch(/SelectType=select\/linear\n[\s\S]*DefMemPerNode/);
    expect(slurmConf(input('22.05.8', 'exclusive'))).toMatch(
      /^PartitionName=a100 .*OverSubscribe=EXCLUSIVE$/m,
    );
    expect(cgroupConf(input('22.05.8', 'cgroup'))).toContain('ConstrainRAMSpace=yes');
    expect(clusterFolders('c', 'private-tmp').base).toMatch(/^\/var\/tmp\//);
    const apart = input('22.05.8', 'separate-hosts');
    const hosts = new ClusterHosts(apart.folders);
    const [a1, a2] = ['a1', 'a2'].map((node) => hosts.address(node).replaceAll('.', '\\.'));
    expect(slurmConf({ ...apart, hosts })).toMatch(new RegExp(`NodeAddr=${a1} [^]*NodeAddr=${a2} `));
    expect(slurmConf({ ...apart, hosts })).toContain(`SlurmctldHost=localhost(${hosts.login_address})`);
  });
});
