/**
 * The scripts that tests render: every template for every shipped site, and every container form. Requests
 * follow from the site config alone, so that a new site is covered without touching this file.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { packageRoot } from '../../host/package-root.ts';
import { buildJobScript, type JobRole, type JobScript } from '../../slurm/job-script.ts';
import { type SiteConfig, siteSchema } from '../../spec/site.ts';
import { expandSite, siteCacheDir } from '../../spec/site-paths.ts';

/** Stands in for a user's environment on a login node, so that scripts are the same on every machine. */
export const caseEnvironment = {
  HOME: '/home/ada',
  USER: 'ada',
  SCRATCH: '/scratch/ada',
  PSCRATCH: '/pscratch/sd/a/ada',
  LUMI_PROJECT: 'project_465000001',
};

export const siteNames: readonly string[] = readdirSync(join(packageRoot, 'site-configs'))
  .filter((file) => file.endsWith('.yaml'))
  .map((file) => file.replace(/\.yaml$/, ''))
  .sort();

/** A shipped site config as its user would have it. */
export function shippedSite(name: string): SiteConfig {
  const text = readFileSync(join(packageRoot, 'site-configs', `${name}.yaml`), 'utf8');
  return expandSite(siteSchema.parse(parse(text)), caseEnvironment);
}

export interface ScriptCase {
  name: string;
  script: JobScript;
}

/** All of every shipped site, and that of a job array. */
export function allScriptCases(): ScriptCase[] {
  const site = shippedSite('test-cluster');
  return [
    ...siteNames.flatMap((name) => scriptCases(shippedSite(name))),
    {
      name: 'test-cluster.agent.scavenge-gh200.array',
      script: caseScript(site, 'agent', 'scavenge-gh200', 4),
    },
    ...containerCases(),
  ];
}

/** Node agents in each kind of container that takes binds, with those of the site, and a folder for caches. */
function containerCases(): ScriptCase[] {
  const site = shippedSite('generic-slurm');
  const containers: SiteConfig['runtime']['container'][] = [
    { runtime: 'apptainer', image: '/images/vllm.sif', binds: ['/opt/cray:/opt/cray:ro'], flags: ['--nv'] },
    { runtime: 'enroot-pyxis', image: 'nvcr.io#nvidia/vllm:25.09-py3', binds: ['/opt/cray'], flags: [] },
    { runtime: 'podman', image: 'localhost/vllm:1', binds: [], flags: ['--device=nvidia.com/gpu=all'] },
  ];
  return containers.map((container) => ({
    name: `generic-slurm.agent.gpu.${container.runtime}`,
    script: caseScript(
      { ...site, scratch_dir: '/scratch/ada', runtime: { ...site.runtime, container } },
      'agent',
      'gpu',
    ),
  }));
}

/** One agent script for each node kind of a Slurm site, and its gateway script. */
function scriptCases(site: SiteConfig): ScriptCase[] {
  if (site.kind === 'local') return [];
  return [
    ...site.node_kinds.map((kind) => ({
      name: `${site.name}.agent.${kind.name}`,
      script: caseScript(site, 'agent', kind.name),
    })),
    { name: `${site.name}.gateway`, script: caseScript(site, 'gateway') },
  ];
}

/**
 * The script of one role on a site; for agents of all devices of one node (two nodes on the first kind).
 * @param array_tasks of an array of so many
 */
export function caseScript(
  site: SiteConfig,
  role: JobRole,
  kindName?: string,
  array_tasks?: number,
): JobScript {
  const node_kind = site.node_kinds.find((kind) => kind.name === kindName);
  const launch_id = '0123456789abcdef';
  const folder = `${site.state_dir}/${site.name}/deployments/chat/launches/${launch_id}`;
  const install = site.runtime.install_dir ?? '/home/ada/hpcserve';
  const cache_dir = siteCacheDir(site, caseEnvironment);
  return buildJobScript({
    role,
    site,
    ...(node_kind === undefined ? {} : { node_kind }),
    deployment: 'chat',
    version: '0.1.0',
    command: [
      `${install}/bin/node`,
      ...[`${install}/dist/${role}/main.js`, '--launch'],
      ...(array_tasks === undefined ? [`${folder}/launch.json`] : []),
    ],
    ...(array_tasks === undefined ? {} : { task_file: 'launch.json' }),
    visible_folders: [install, site.state_dir],
    ...(cache_dir === undefined ? {} : { cache_dir }),
    request: {
      job_name: `hpcserve-chat-${role}`,
      nodes: role === 'agent' && node_kind === site.node_kinds[0] ? 2 : 1,
      gpus_per_node:
        node_kind?.devices
          .filter((device) => device.kind !== 'cpu')
          .reduce((sum, device) => sum + device.count, 0) ?? 0,
      cpus_per_node: node_kind?.cpus ?? site.gateway.cpus,
      memory_mb_per_node: Math.floor(((node_kind?.memory_gb ?? site.gateway.memory_gb) * 1e9) / 2 ** 20),
      log_file: array_tasks === undefined ? `${folder}/job.log` : 'job.log',
      ...(array_tasks === undefined ? {} : { array_tasks }),
      working_folder: folder,
      launch_id,
      tier: node_kind?.tier ?? 'stable',
    },
  });
}
