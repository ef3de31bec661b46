/** Ends nobody asked for: killed at any moment, a full disk, a folder that is taken away. */
import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import {
  closeSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeSync,
} from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import type { AgentState } from '../../../spec/agent-state.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { eventually } from '../../mesh/support.ts';
import { fixtureUnit, type RunningAgent, Site, unitOf } from '../support.ts';

const mark_variable = 'HPCSERVE_TEST_MARK';

/** Processes that have the mark in their environment: the agent and everything that it started. */
function marked(mark: string): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        return readFileSync(`/proc/${pid}/environ`, 'latin1').includes(`${mark_variable}=${mark}`);
      } catch {
        return false; // ended meanwhile, or another user's
      }
    })
    .map(Number);
}

async function toyModel(site: Site): Promise<string> {
  const path = join(site.folder, 'toy.gguf');
  await synthesize({ path, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
  return path;
}

describe('an agent that is killed leaves no process and no socket behind', () => {
  test.each([0, 60, 150, 300, 450, 600, 800, 1200])('%i ms after it was started', async (delay_ms) => {
    await using site = await Site.open();
    const mark = randomUUID();
    const agent = await site.start(
      [
        unitOf({ name: 'toy' }, { engine: 'native', model_path: await toyModel(site) }),
        fixtureUnit('m', ['--child']),
      ],
      {},
      { [mark_variable]: mark },
    );
    await new Promise((resolve) => setTimeout(resolve, delay_ms));
    agent.process.kill('SIGKILL');
    await agent.ended;
    await eventually(() => marked(mark).length === 0, 'every process is gone', 6000);
    await eventually(() => readdirSync(join(site.folder, 'run')).length === 0, 'the sockets are gone', 6000);
  });

  test('while it drains', async () => {
    await using site = await Site.open();
    const mark = randomUUID();
    const agent = await site.start([fixtureUnit('m', ['--child'])], {}, { [mark_variable]: mark });
    const record = await site.serving('m');
    const answer = await site.ask(record, 'hang');
    const broken = expect(answer.body.text()).rejects.toThrow();
    agent.process.kill('SIGTERM');
    await eventually(() => site.registry.get(record.session_id)?.lifecycle === 'DOWN', 'it drains');
    expect(marked(mark).length).toBeGreaterThan(2);
    agent.process.kill('SIGKILL');
    await agent.ended;
    await broken;
    await eventually(() => marked(mark).length === 0, 'every process is gone', 6000);
  });
});

/** Processes with the mark that run `sleep` for so long. */
function sleeping(mark: string, seconds: number): number[] {
  return marked(mark).filter((pid) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'latin1').includes(`sleep\0${seconds}\0`);
    } catch {
      return false; // ended meanwhile
    }
  });
}

describe('what an engine started in groups of its own', () => {
  test('ends when the engine is killed, before another is started', async () => {
    await using site = await Site.open();
    const mark = randomUUID();
    const agent = await site.start([fixtureUnit('m', ['--shard'])], {}, { [mark_variable]: mark });
    const record = await site.serving('m');
    const [shard] = await eventually(() => {
      const found = sleeping(mark, 611);
      return found.length > 0 ? found : undefined;
    }, 'the shard');
    process.kill(await agent.pidOf(record), 'SIGKILL');
    await site.session(
      (each) =>
        each.session_id !== record.session_id &&
        each.lifecycle === 'SERVING' &&
        each.metadata.role === 'engine',
      20_000,
    );
    await eventually(() => sleeping(mark, 611).length === 1, 'the shard of the next');
    expect(sleeping(mark, 611)).not.toContain(shard);
  });

  test('or left the session: ends when the engine is told to', async () => {
    await using site = await Site.open();
    const mark = randomUUID();
    const units = [fixtureUnit('m', ['--shard', '--daemon'])];
    const agent = await site.start(units, {}, { [mark_variable]: mark });
    await site.serving('m');
    await eventually(() => sleeping(mark, 612).length === 1, 'the daemon');
    agent.process.kill('SIGTERM');
    expect(await agent.ended).toEqual({ code: 0, signal: null });
    expect(marked(mark)).toEqual([]);
  });

  test('ends with an agent that is killed', async () => {
    await using site = await Site.open();
    const mark = randomUUID();
    const agent = await site.start([fixtureUnit('m', ['--shard'])], {}, { [mark_variable]: mark });
    await site.serving('m');
    await eventually(() => sleeping(mark, 611).length === 1, 'the shard');
    agent.process.kill('SIGKILL');
    await agent.ended;
    await eventually(() => marked(mark).length === 0, 'every process is gone', 6000);
  });
});

test('a unit that cannot be started again fails alone', async () => {
  await using site = await Site.open();
  const agent = await site.start([fixtureUnit('one'), fixtureUnit('other')]);
  const one = await site.serving('one');
  const other = await site.serving('other');
  const [folder] = readdirSync(join(site.folder, 'run'));
  // As a full disk would: what the next start makes first cannot be made.
  for (const unit of ['u0', 'u1']) closeSync(openSync(join(site.folder, 'run', folder!, `${unit}-1`), 'w'));
  process.kill(await agent.pidOf(one), 'SIGKILL');
  const state = await agent.stateWhere(
    ({ sessions }) => sessions.some(({ unit, next_tries_ms }) => unit === 'one-0' && next_tries_ms),
    'it is given up',
    20_000,
  );
  const failed = state.sessions.find(({ unit }) => unit === 'one-0')!;
  expect(failed.error).toMatchObject({ what: expect.stringMatching(/EEXIST/) });
  expect(await (await site.ask(other, 'count 1')).body.text()).toContain('[DONE]');
  agent.process.kill('SIGTERM');
  expect(await agent.ended).toEqual({ code: 0, signal: null });
  await eventually(() => site.registry.get(one.session_id)?.lifecycle === 'LEFT', 'it left');
});

test('asked to stop while it starts, it begins nothing more, and no worker is waited for that has not come to itself', async () => {
  await using site = await Site.open();
  const model_path = await toyModel(site);
  const said = async (agent: RunningAgent): Promise<string[]> => {
    const log = await readFile(join(agent.launch.launch_folder, 'n0.agent.log'), 'utf8').catch(() => '');
    return log
      .split('\n')
      .filter(Boolean)
      .map((line) => (JSON.parse(line) as { msg: string }).msg);
  };
  // Early, and when its worker has just been started.
  for (const when of ['node agent started', 'listening']) {
    const units = [unitOf({ name: 'toy' }, { engine: 'native', model_path })];
    const agent = await site.start(units, { mesh: { bootstrap: [], relay: [] } });
    await eventually(async () => (await said(agent)).includes(when), when);
    agent.process.kill('SIGTERM');
    expect(await agent.ended).toEqual({ code: 0, signal: null });
    const all = await said(agent);
    const after = all.slice(all.indexOf('asked to stop') + 1);
    expect(
      after.filter((line) => /listening|gossip|serv/.test(line)),
      all.join('\n'),
    ).toEqual([]);
    expect(all.at(-1)).toBe('stopped');
  }
});

test('a worker that is killed while it loads: the unit failed, and says that it may have been memory', async () => {
  await using site = await Site.open();
  const mark = randomUUID();
  const agent = await site.start(
    [unitOf({ name: 'toy' }, { engine: 'native', model_path: await toyModel(site) })],
    // Each iteration of its measurement, the end of a load, takes seconds: it does not serve before it is killed.
    { emulated_step_ms: 3000 },
    { [mark_variable]: mark, SLURM_MEM_PER_NODE: '2048' },
  );
  const worker = await eventually(
    async () => (await agent.state())?.sessions.find((session) => session.unit)?.pid,
    'a worker is there',
  );
  process.kill(worker, 'SIGKILL');
  await agent.ended;
  const state = (await agent.state())!;
  expect(state).toMatchObject({ phase: 'failed', error: { code: 'E_AGENT_UNITS_FAILED' } });
  const unit = state.sessions.find((session) => session.unit)!;
  expect(unit.error!.what).toMatch(
    /^the device worker of .* was killed \(SIGKILL\), perhaps out of memory: the job may use 2.0 GiB on this node$/,
  );
  expect(unit.models[0]!.error).toBe(unit.error!.what);
  expect(marked(mark)).toEqual([]);
});

/** @returns the bytes that there was room for */
function fill(path: string): number {
  const file = openSync(path, 'a');
  const block = Buffer.alloc(4096);
  try {
    for (let bytes = 0; ; )
      try {
        bytes += writeSync(file, block);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code === 'ENOSPC') return bytes;
        throw error;
      }
  } finally {
    closeSync(file);
  }
}

describe.skipIf(process.getuid?.() !== 0)('a launch folder on a filesystem that is full', () => {
  async function stateOverMesh(site: Site, model: string): Promise<AgentState> {
    const pool = site.pool(await site.serving(model));
    const answer = await pool.request({ method: 'GET', path: agentPaths.state });
    return (await answer.body.json()) as AgentState;
  }

  test('costs neither agent, nor engine, nor worker; it is reported, and what is true is written when there is room', async () => {
    await using site = await Site.open();
    const small = join(site.folder, 'small');
    mkdirSync(small);
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=256k,mode=0700', 'tmpfs', small]);
    let agent: RunningAgent | undefined;
    try {
      const launch_folder = join(small, 'launch');
      mkdirSync(launch_folder);
      agent = await site.start(
        [fixtureUnit('m'), unitOf({ name: 'toy' }, { engine: 'native', model_path: await toyModel(site) })],
        { launch_folder },
      );
      const record = await site.serving('m');
      await site.serving('toy', 20_000);
      // A file that was being replaced leaves room for another when it is through.
      while (fill(join(small, 'filler')) > 0) await delay(200);
      agent.process.kill('SIGUSR1'); // something to write
      const { notices } = await eventually(async () => {
        const state = await stateOverMesh(site, 'm');
        return state.notices ? state : undefined;
      }, 'it says so');
      expect(notices![0]).toMatchObject({
        code: 'E_AGENT_STATE',
        because: [expect.stringContaining('ENOSPC')],
      });
      for (let round = 0; round < 3; round++) {
        expect(await (await site.ask(record, 'count 2')).body.text()).toContain('[DONE]');
      }
      rmSync(join(small, 'filler'));
      const state = await agent.stateWhere(
        (now) => now.walltime_warning_at_ms !== undefined,
        'it is written',
      );
      expect(state.phase).toBe('serving');
      await agent.stateWhere((now) => now.notices === undefined, 'and all is well');
    } finally {
      agent?.process.kill('SIGTERM');
      await agent?.ended;
      execFileSync('umount', [small]);
    }
  });
});

test('a launch folder that is deleted for good does not end what serves; the agent still stops in order', async () => {
  await using site = await Site.open();
  const agent = await site.start([fixtureUnit('m')]);
  const record = await site.serving('m');
  // At once, as the agent may be writing into it.
  const gone = `${agent.launch.launch_folder}.gone`;
  renameSync(agent.launch.launch_folder, gone);
  rmSync(gone, { recursive: true });
  agent.process.kill('SIGUSR1');
  expect(await (await site.ask(record, 'count 1')).body.text()).toContain('[DONE]');
  agent.process.kill('SIGTERM');
  expect(await agent.ended).toEqual({ code: 0, signal: null });
  await eventually(() => site.registry.get(record.session_id)?.lifecycle === 'LEFT', 'it left');
});
