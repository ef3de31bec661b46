/**
 * Where a shell can go, and what its command is told of the site; shells themselves are in slurm-deploy.e2e.test.ts.
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type Operations, openOperations } from '../../control/runner/operations.ts';
import { shellPlaces, stepCommand } from '../../control/shell.ts';
import { aroundChange } from '../../control/state/locks.ts';
import { FolderLock } from '../../host/folder-lock.ts';
import { joinedNodeFiles, joinedNodesFolder } from '../../spec/joined-node.ts';
import { siteSchema } from '../../spec/site.ts';
import { deploymentState, launchRecord, plannedLaunch, temporaryStore } from './support.ts';

let place: ReturnType<typeof temporaryStore>;
beforeEach(() => {
  place = temporaryStore();
});
afterEach(() => place.dispose());

function open(site: object): Operations {
  return openOperations({
    loaded: {
      site: siteSchema.parse({ name: 'here', ...site }),
      path: '/site.yaml',
      layout: place.store.layout,
      provenance: () => undefined,
    },
    facts: { user: 'someone', environment: { PATH: '/nowhere', SLURM_CLUSTERS: 'another' } },
    command: 'test',
    now_ms: Date.now,
    emit: () => {},
    signal: new AbortController().signal,
  });
}

it('is a step on the cluster of the site, whatever the environment says', () => {
  const { command_environment } = open({ kind: 'slurm', slurm: { cluster: 'alpha' } });
  expect(command_environment).toMatchObject({ PATH: '/nowhere', SLURM_CLUSTERS: 'alpha' });
  expect(open({ kind: 'slurm' }).command_environment).toMatchObject({ SLURM_CLUSTERS: 'another' });
});

it('goes into the job that a joined node is part of, and nowhere where it has none', async () => {
  const { store } = place;
  const ids = { gh1: 'aaaaaaaa', desk: 'bbbbbbbb' };
  const locks: FolderLock[] = [];
  const launches = Object.entries(ids).map(([node, id], index) => {
    const { launch_id } = launchRecord(index + 1);
    const planned = { ...plannedLaunch(`m-${index + 1}`), node_kind: `joined-${node}` };
    return launchRecord(index + 1, { phase: 'submitted', job_id: `joined.${id}.${launch_id}`, planned });
  });
  for (const [index, [node, id]] of Object.entries(ids).entries()) {
    const folder = join(joinedNodesFolder(store.layout), id);
    mkdirSync(join(folder, joinedNodeFiles.orders), { recursive: true });
    const joined = {
      format: 1,
      id,
      node_kind: `joined-${node}`,
      node,
      hostname: node,
      tier: 'scavenger',
      ...(node === 'gh1' ? { job_id: '4711' } : {}),
      joined_at_ms: 1,
      devices: [],
      cpus: 1,
      memory_bytes: 1e9,
      architecture: 'x86_64',
      isa: [],
    };
    writeFileSync(join(folder, joinedNodeFiles.node), JSON.stringify(joined));
    writeFileSync(
      join(folder, joinedNodeFiles.orders, joinedNodeFiles.status(launches[index]!.launch_id)),
      JSON.stringify({ format: 1, phase: 'running', started_at_ms: 1 }),
    );
    const lock = join(folder, joinedNodeFiles.lock);
    locks.push(await FolderLock.acquire(lock, aroundChange({ command: 'test', timeout_ms: 1000 })));
  }
  store.prepareDeployment('demo');
  store.write(deploymentState(launches));
  try {
    const places = await shellPlaces(open({ kind: 'slurm' }));
    expect(places).toMatchObject([{ node: 'gh1', job_number: '4711', units: ['m-1'] }]);
    expect(stepCommand(places[0]!, ['true'], false)).toContain('--jobid=4711');
    // A shell of the local site is one on this machine.
    expect(await shellPlaces(open({ kind: 'local' }))).toEqual([]);
  } finally {
    for (const lock of locks) lock.release();
  }
});
