/**
 * Podman: a deployment whose node agents run in rootless containers, on a real Slurm cluster; and an engine alone in
 * one, behind a prefix.
 */
import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { packageRoot } from '../../host/package-root.ts';
import { childrenOf } from '../../host/process-identity.ts';
import { fixtureUnit, type RunningAgent, Site } from '../agent/support.ts';
import { findProgram } from '../cluster/install.ts';
import { acquireCluster, type ClusterLease } from '../cluster/shared.ts';
import { hpcserveProgram } from '../cluster/user-home.ts';
import { eventually } from '../mesh/support.ts';

const lacking = ['podman', 'newuidmap', 'runc'].filter((program) => findProgram(program) === undefined);
/** An image without a file in it: everything comes from the node, read-only. */
const image = 'localhost/empty:1';
const fromNode = ['/usr', '/lib', '/lib64', '/bin', '/etc'].map((folder) => `${folder}:${folder}:ro`);

describe.skipIf(lacking.length > 0)(
  `node agents in podman${lacking.length > 0 ? ` [skipped: needs ${lacking.join(', ')}]` : ''}`,
  () => {
    let lease: ClusterLease;
    let folder: string;

    beforeAll(async () => {
      lease = await acquireCluster();
      folder = mkdtempSync('/tmp/hpcserve-podman-');
      chmodSync(folder, 0o700);
      give(folder);
      const empty = join(folder, 'empty');
      mkdirSync(empty);
      for (const name of ['usr', 'lib', 'lib64', 'bin', 'etc', 'tmp', 'dev', 'proc', 'sys', 'run'])
        mkdirSync(join(empty, name));
      expect(spawnSync('tar', ['-C', empty, '-cf', join(folder, 'empty.tar'), '.']).status).toBe(0);
      give(join(folder, 'empty.tar'));
      // Machines that build and test differ in what their kernel lets containers have; none of it matters here.
      write('containers.conf', '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\n');
      const imported = await as(['podman', 'import', join(folder, 'empty.tar'), image]);
      expect(imported.code, imported.stderr).toBe(0);
      const shipped = readFileSync(join(packageRoot, 'site-configs/test-cluster.yaml'), 'utf8');
      const runtime = {
        environment: { ...environment(), HPCSERVE_HOOK: 'cxi' },
        container: {
          runtime: 'podman',
          image,
          binds: fromNode,
          flags: ['--annotation=com.hooks.cxi.enabled=true'],
        },
      };
      write('site.yaml', `${shipped.replace(/^name: .*/m, 'name: boxed')}${stringify({ runtime })}`);
      const made = await hpcserve('model', 'synth', 'toy.gguf', '--preset', 'tiny-llama', '--seed', '1');
      expect(made.code, made.stderr).toBe(0);
    });
    afterAll(async () => {
      await hpcserve('stop', '--all', '--yes');
      // Layers belong to users of the container.
      await as(['podman', 'unshare', 'rm', '-rf', join(folder, '.local')]);
      // It keeps a process that holds its user namespace.
      await as(['podman', 'system', 'migrate']);
      await lease?.release();
      rmSync(folder, { recursive: true, force: true });
    });

    function environment(): Record<string, string> {
      return {
        HOME: folder,
        XDG_RUNTIME_DIR: folder,
        STORAGE_DRIVER: 'vfs',
        CONTAINERS_CONF: join(folder, 'containers.conf'),
      };
    }
    function as(argv: string[]): ReturnType<typeof lease.cluster.runAs> {
      return lease.cluster.runAs('user', argv, { cwd: folder, env: environment(), timeout_ms: 120_000 });
    }
    function hpcserve(...argv: string[]): ReturnType<typeof lease.cluster.runAs> {
      return lease.cluster.runAs('user', [...hpcserveProgram, ...argv], {
        cwd: folder,
        env: { HOME: folder, HPCSERVE_SITE: join(folder, 'site.yaml') },
        timeout_ms: 120_000,
      });
    }
    function give(path: string): void {
      chownSync(path, lease.cluster.user.uid, lease.cluster.user.gid);
    }
    function write(name: string, text: string): string {
      writeFileSync(join(folder, name), text);
      give(join(folder, name));
      return join(folder, name);
    }

    it('serve, are inside with what the site config says, and leave nothing behind', async () => {
      // As the Hugging Face cache has it: a folder of links, to files that lie elsewhere.
      const cache = join(folder, 'hub/models--a--b');
      const moved = await as([
        ...[
          'sh',
          '-ec',
          'mkdir -p "$1/blobs" "$1/snapshots/7c"; mv toy.gguf "$1/blobs/0f"; cd "$1/snapshots/7c"',
        ],
        ...['sh', cache],
      ]);
      expect(moved.code, moved.stderr).toBe(0);
      symlinkSync('../../blobs/0f', join(cache, 'snapshots/7c/toy.gguf'));
      const model = {
        name: 'boxed',
        source: './hub/models--a--b/snapshots/7c/toy.gguf',
        cpu_threads: 1,
        context_tokens: 512,
        tier: 'stable',
      };
      const file = write(
        'boxed.yaml',
        JSON.stringify({ name: 'boxed', models: [{ ...model, devices: { kind: 'gpu' } }] }),
      );
      const deployed = await hpcserve('deploy', '--yes', file, '--json', '--timeout', '90s');
      expect(deployed.code, deployed.stderr + deployed.stdout).toBe(0);
      const { url, key } = JSON.parse(deployed.stdout.trim().split('\n').at(-1)!) as {
        url: string;
        key: string;
      };
      const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
      const answer = await client.chat.completions.create({
        model: 'boxed',
        max_tokens: 8,
        messages: [{ role: 'user', content: 'Hello' }],
      });
      expect(answer.usage!.completion_tokens).toBeGreaterThan(0);

      const listed = await as(['podman', 'ps', '--format=json']);
      const [container, ...others] = JSON.parse(listed.stdout) as { Id: string }[];
      expect(others).toEqual([]);
      const inspected = await as(['podman', 'inspect', container!.Id]);
      const [facts] = JSON.parse(inspected.stdout) as {
        Config: { Annotations: Record<string, string>; Env: string[] };
      }[];
      expect(facts!.Config.Annotations).toMatchObject({ 'com.hooks.cxi.enabled': 'true' });
      expect(facts!.Config.Env).toEqual(
        expect.arrayContaining(['HPCSERVE_HOOK=cxi', expect.stringMatching(/^SLURM_JOB_ID=\d+$/)]),
      );
      expect((await hpcserve('stop', 'boxed')).code).toBe(0);
      // Slurm's signal reached the agent inside, which drained and left.
      const launches = join(folder, '.hpcserve/boxed/deployments/boxed/launches');
      const states = readdirSync(launches, { recursive: true, encoding: 'utf8' }).filter((name) =>
        name.endsWith('.state.json'),
      );
      expect(states.map((name) => JSON.parse(readFileSync(join(launches, name), 'utf8')))).toMatchObject([
        { phase: 'stopped', exit_reason: 'received SIGTERM' },
      ]);
      expect(JSON.parse((await as(['podman', 'ps', '--all', '--format=json'])).stdout)).toEqual([]);
    }, 150_000);

    it.skipIf(process.getuid?.() !== 0)(
      'hold an engine alone, with its socket, its model and its key, and never longer than its agent lives',
      async () => {
        const storage = ['--root', join(folder, 'root'), '--runroot', join(folder, 'runroot')];
        const podman = [
          'podman',
          ...storage,
          '--storage-driver=vfs',
          '--runtime=runc',
          '--cgroup-manager=cgroupfs',
        ];
        expect(
          spawnSync(podman[0]!, [...podman.slice(1), 'import', join(folder, 'empty.tar'), image]).status,
        ).toBe(0);
        try {
          await using site = await Site.open();
          // Its own default is more than root may set where it lacks a capability.
          const limits = ['--ulimit=nofile=1024:1024', '--ulimit=nproc=1024:1024'];
          const engine_prefix = [
            ...[...podman, 'run', '--rm', '--network=host', ...limits],
            ...[...fromNode.map((bind) => `--volume=${bind}`), image],
          ];
          const serve = async (name: string): Promise<RunningAgent> => {
            const unit = fixtureUnit(name, [], { model_path: join(folder, 'empty.tar') });
            const agent = await site.start([unit], { engine_prefix });
            const answer = await site.ask(await site.serving(name, 60_000), 'count 1');
            expect(answer.statusCode).toBe(200);
            expect(await answer.body.text()).toContain('[DONE]');
            return agent;
          };
          const asked = (...argv: string[]): string =>
            spawnSync(podman[0]!, [...podman.slice(1), ...argv], { encoding: 'utf8' }).stdout;
          const containers = (): string[] => asked('ps', '--quiet').split('\n').filter(Boolean);
          // Podman's containers are no children of its client.
          const killed = await serve('m');
          expect(containers()).toHaveLength(1);
          await killed.kill();
          await eventually(() => containers().length === 0, 'its guard ends the container', 30_000);

          const alone = await serve('n');
          const left = containers();
          // As Slurm does with all processes of a job that it knows.
          for (const child of childrenOf(alone.process.pid!)) process.kill(child, 'SIGKILL');
          await alone.kill();
          expect(containers()).toEqual(left);
          await serve('o');
          expect(containers()).toHaveLength(1);
          expect(containers()).not.toEqual(left);

          // That it is stopped is seen where it is, and not only of its client.
          const { session_id } = await site.serving('o');
          const inside = Number(asked('inspect', '--format', '{{.State.Pid}}', containers()[0]!));
          process.kill(inside, 'SIGSTOP');
          const stateIs = (state: string) => () =>
            site.registry.get(session_id)!.metadata.models[0]!.state === state;
          await eventually(stateIs('stalled'), 'it has stalled', 10_000);
          process.kill(inside, 'SIGCONT');
          await eventually(stateIs('serving'), 'it goes on', 10_000);
        } finally {
          spawnSync(podman[0]!, [...podman.slice(1), 'rm', '--all', '--force', '--time=0']);
        }
      },
      120_000,
    );
  },
);
