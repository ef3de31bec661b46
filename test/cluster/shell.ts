/** What a person finds who opens a shell on the cluster: the command, the site, a model and its model.yaml. */
import { chownSync, copyFileSync, existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import type { Cluster } from './cluster.ts';

interface UserShell {
  /** Run as the ordinary user: `Cluster.argvAsUser`. */
  argv: readonly string[];
  /** Where it begins. */
  folder: string;
  /** Beside that of the cluster. */
  environment: Record<string, string>;
}

const modelYaml = `name: demo
models:
  - name: guide
    source: ./guide.gguf
    replicas: 2
    devices: { kind: gpu }
slurm:
  time_limit: 00:30:00
`;

/** Makes what is not there: a model.yaml that was changed stays as it is. */
export function userShell(cluster: Cluster): UserShell {
  const { state, user } = cluster;
  // Deployments of two clusters of one site's name would get into each other's way.
  const home = state.name === 'default' ? user.home : join(user.home, `on-${state.name}`);
  const folder = join(home, 'demo');
  const programs = join(home, '.cluster-shell');
  for (const each of [home, folder, programs]) makeFolder(cluster, each);
  const command = join(packageRoot, 'cli/hpcserve.mjs');
  const launcher = join(programs, 'hpcserve');
  write(cluster, launcher, `#!/bin/sh\nexec '${process.execPath}' '${command}' "$@"\n`, 0o755);
  const environment = {
    HOME: home,
    HPCSERVE_SITE: 'test-cluster',
    PATH: [programs, cluster.env.PATH].join(delimiter),
  };
  const model = join(folder, 'guide.gguf');
  if (!existsSync(model)) {
    copyFileSync(join(packageRoot, 'examples/guide.gguf'), model);
    chownSync(model, user.uid, user.gid);
  }
  const specification = join(folder, 'model.yaml');
  if (!existsSync(specification)) write(cluster, specification, modelYaml, 0o644);
  // No login shell: /etc/profile would set another PATH.
  return { argv: ['/bin/bash'], folder, environment };
}

function makeFolder({ user }: Cluster, folder: string): void {
  if (existsSync(folder)) return;
  mkdirSync(folder, { mode: 0o755 });
  chownSync(folder, user.uid, user.gid);
}

function write({ user }: Cluster, path: string, text: string, mode: number): void {
  writeFileSync(path, text, { mode });
  chownSync(path, user.uid, user.gid);
}
