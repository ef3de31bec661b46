import { once } from 'node:events';
import { readdir, readFile, rename } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { pinnedConnect, SessionIdentity } from '../../../mesh/index.ts';
import type { AgentState } from '../../../spec/agent-state.ts';
import { agentPaths, headers } from '../../../spec/wire.ts';
import { eventually } from '../../mesh/support.ts';
import { alive, fixtureUnit, Site, unitOf } from '../support.ts';

async function textOf(answer: { body: { text(): Promise<string> } }): Promise<string> {
  return answer.body.text();
}

describe('a node agent with a wrapped engine', () => {
  test('registers, passes requests through with its own key, and stops cleanly on SIGTERM', async () => {
    await using site = await Site.open();
    const agent = await site.start([fixtureUnit('m')]);
    const record = await site.serving('m');
    expect(record.metadata).toMatchObject({
      role: 'engine',
      deployment: 'test',
      launch_id: agent.launch.launch_id,
      unit: 'm-0',
      node: 'n0',
      site: 'local',
      engine: 'command',
      addresses: [{ host: '127.0.0.1', port: expect.any(Number) }],
    });
    expect(record.metadata.devices[0]).toMatchObject({ kind: 'cpu', cores: expect.any(Array) });

    const answer = await site.ask(record, 'count 3');
    expect(answer.statusCode).toBe(200);
    expect(answer.headers).toMatchObject({
      'x-fixture': 'yes',
      [headers.node]: 'n0',
      [headers.engine]: 'command',
      [headers.session]: record.session_id,
      [headers.precision]: 'auto',
    });
    const text = await textOf(answer);
    expect(text.match(/^data: /gm)).toHaveLength(4);
    expect(text.endsWith('data: [DONE]\n\n')).toBe(true);

    const state = await agent.stateWhere((now) => now.phase === 'serving', 'serving');
    const unit = state.sessions.find((session) => session.unit === 'm-0')!;
    expect(unit).toMatchObject({ session_id: record.session_id, models: [{ name: 'm', state: 'serving' }] });
    expect(alive(unit.pid!)).toBe(true);
    const pool = site.pool(record);
    const asked = await pool.request({ method: 'GET', path: agentPaths.state });
    expect(await asked.body.json()).toMatchObject({ launch_id: agent.launch.launch_id, phase: 'serving' });

    const begun = performance.now();
    agent.process.kill('SIGTERM');
    expect(await agent.ended).toEqual({ code: 0, signal: null });
    expect(performance.now() - begun).toBeLessThan(10_000);
    expect(alive(unit.pid!)).toBe(false);
    const last = (await agent.state())!;
    expect(last).toMatchObject({ phase: 'stopped', exit_reason: 'received SIGTERM' });
    const stopped = last.sessions.find((session) => session.unit)!;
    expect([stopped.models[0]!.state, stopped.pid]).toEqual(['unloaded', undefined]);
    await eventually(() => site.registry.get(record.session_id)?.lifecycle === 'LEFT', 'the unit left');
    await eventually(
      () =>
        site.registry.snapshot().every((one) => one.lifecycle === 'LEFT' || one.metadata.role === 'gateway'),
      'the agent left',
    );
    await eventually(
      async () => (await readdir(join(site.folder, 'run'))).length === 0,
      'no sockets are left',
    );
  });

  test('the key is in no argument, state or log', async () => {
    await using site = await Site.open();
    const agent = await site.start([fixtureUnit('m', [], {}, '{port}')]);
    const pid = await agent.pidOf(await site.serving('m'));
    const environment = (await readFile(`/proc/${pid}/environ`, 'utf8')).split('\0');
    const key = environment.find((line) => line.startsWith('HPCSERVE_ENGINE_KEY='))!.split('=')[1]!;
    expect(key).toMatch(/^[0-9a-f]{64}$/);
    expect(await readFile(`/proc/${pid}/cmdline`, 'utf8')).not.toContain(key);
    await agent.stateWhere((now) => now.phase === 'serving', 'serving');
    for (const name of await readdir(agent.launch.launch_folder)) {
      // What is being written takes the place of another file, under whose name it is read.
      if (name.includes('.tmp-')) continue;
      expect(await readFile(join(agent.launch.launch_folder, name), 'utf8'), name).not.toContain(key);
    }
  });

  test('a client that goes away ends the work of the engine; one that stays gets its stream as it comes', async () => {
    await using site = await Site.open();
    const agent = await site.start([fixtureUnit('m')]);
    const record = await site.serving('m');
    const abort = new AbortController();
    const answer = await site.ask(record, 'hang', { signal: abort.signal });
    const first = await answer.body[Symbol.asyncIterator]().next();
    expect(String(first.value)).toContain('"1 "'); // it came though the answer has not ended
    abort.abort();
    await eventually(async () => (await agent.engineLog('m-0')).includes('aborted'), 'the engine noticed');
  });

  test('a client that reads slowly slows the engine down, instead of filling memory', async () => {
    await using site = await Site.open();
    const agent = await site.start([fixtureUnit('m')]);
    const answer = await site.ask(await site.serving('m'), 'flood 1000');
    const chunks = answer.body[Symbol.asyncIterator]();
    let bytes = ((await chunks.next()).value as Buffer).length;
    await eventually(
      async () => (await agent.engineLog('m-0')).includes('stalled'),
      'the engine has to wait',
    );
    expect(await agent.engineLog('m-0')).not.toContain('flooded');
    for await (const chunk of { [Symbol.asyncIterator]: () => chunks }) bytes += (chunk as Buffer).length;
    expect(bytes).toBe(1000 * 65_536);
  });

  test('bodies are taken up to the limit, and refused above it', async () => {
    await using site = await Site.open();
    await site.start([fixtureUnit('m')]);
    const record = await site.serving('m');
    const large = Buffer.alloc(31 * 1024 * 1024, 'x');
    const pool = site.pool(record);
    const send = (body: Buffer) => pool.request({ method: 'POST', path: '/v1/chat/completions', body });
    expect(await (await send(large)).body.json()).toEqual({ body_bytes: large.length });
    const refused = await send(Buffer.alloc(33 * 1024 * 1024));
    expect(refused.statusCode).toBe(413);
    expect(await refused.body.json()).toMatchObject({ error: { code: 'E_AGENT_REQUEST' } });
    expect(await textOf(await site.ask(record, 'count 1'))).toContain('[DONE]');
  });

  test('a session without a unit, as one that has ended, sends requests elsewhere instead of blaming them', async () => {
    await using site = await Site.open();
    await site.start([fixtureUnit('m')]);
    await site.serving('m');
    const own = await site.session((record) => record.metadata.role === 'node-agent');
    const ask = (path: string) => site.pool(own).request({ method: 'POST', path, body: '{}' });
    const answer = await ask('/v1/chat/completions');
    expect(answer.statusCode).toBe(503);
    expect(await answer.body.json()).toMatchObject({ error: { code: 'E_AGENT_NOT_READY' } });
    const unknown = await ask('/metrics');
    expect(unknown.statusCode).toBe(404);
    await unknown.body.dump();
  });

  test('an answer that the engine breaks off does not end as if it were whole', async () => {
    await using site = await Site.open();
    await site.start([fixtureUnit('m')]);
    const answer = await site.ask(await site.serving('m'), 'half');
    await expect(textOf(answer)).rejects.toThrow();
  });

  test('heartbeats come on a stream that ends with the session; unknown paths and models are refused', async () => {
    await using site = await Site.open();
    await site.start([fixtureUnit('m')]);
    const record = await site.serving('m');
    const pool = site.pool(record);
    const watch = await pool.request({ method: 'GET', path: agentPaths.watch });
    const ask = (path: string, model?: string) =>
      pool.request({ method: 'GET', path, ...(model ? { headers: { [headers.model]: model } } : {}) });
    expect((await ask('/metrics')).statusCode).toBe(404);
    expect((await ask('/v1/models', 'other')).statusCode).toBe(503);
    expect((await ask('/v1/models', 'm')).statusCode).toBe(200);
    let text = '';
    for await (const chunk of watch.body) {
      text += chunk;
      if (text.split('\n').length > 3) break;
    }
    const beats = text
      .split('\n')
      .slice(0, 3)
      .map((line) => JSON.parse(line));
    expect(beats.map((beat) => beat.sequence)).toEqual([0, 1, 2]);
    expect(beats[0]).toMatchObject({
      session_id: record.session_id,
      models: [{ name: 'm', state: 'serving', running: 0, max_sequences: 16, kv_tokens_total: 1024 }],
    });
  });

  test('a drained unit finishes what runs, takes nothing new, and leaves', async () => {
    await using site = await Site.open();
    await site.start([fixtureUnit('a'), fixtureUnit('b')], {}, { HPCSERVE_DRAIN_S: '30' });
    const record = await site.serving('a');
    await site.serving('b');
    // It runs for seconds: as long, it is DOWN and not yet LEFT.
    const answer = await site.ask(record, 'count 800');
    const pool = site.pool(record);
    const drain = await pool.request({ method: 'POST', path: agentPaths.drain });
    expect(drain.statusCode).toBe(202);
    await eventually(() => site.registry.get(record.session_id)?.lifecycle === 'DOWN', 'it announces DOWN');
    expect((await site.ask(record, 'count 1')).statusCode).toBe(503);
    expect(await textOf(answer)).toContain('[DONE]');
    await eventually(() => site.registry.get(record.session_id)?.lifecycle === 'LEFT', 'it leaves');
    expect(await textOf(await site.ask(await site.serving('b'), 'count 1'))).toContain('[DONE]');
  });

  test('strangers are refused', async () => {
    await using site = await Site.open();
    await site.start([fixtureUnit('m')]);
    const record = await site.serving('m');
    Object.defineProperty(site.gateway, 'identity', { value: await SessionIdentity.create() });
    const answer = await site.ask(record, 'count 1');
    expect(answer.statusCode).toBe(403);
    expect(await answer.body.json()).toMatchObject({ error: { code: 'E_MESH_PEER' } });
  });
});

describe('what goes wrong', () => {
  test('a unit that fails under somebody who watches it takes neither the agent nor another unit with it', async () => {
    await using site = await Site.open();
    const agent = await site.start([fixtureUnit('m'), fixtureUnit('other')]);
    const [record, other] = [await site.serving('m'), await site.serving('other')];
    // Behind an answer on the same connection: it has beats to say, and nobody to whom they go.
    const socket = await pinnedConnect(record, site.gateway.identity);
    socket.on('error', () => undefined);
    const body = JSON.stringify({ messages: [{ role: 'user', content: 'hang' }] });
    const head = `host: x\r\ncontent-type: application/json\r\ncontent-length: ${body.length}`;
    socket.write(`POST /v1/chat/completions HTTP/1.1\r\n${head}\r\n\r\n${body}`);
    socket.write(`GET ${agentPaths.watch} HTTP/1.1\r\nhost: x\r\n\r\n`);
    await once(socket, 'data');
    await site.ask(record, 'crash').then(
      ({ body }) => body.dump(),
      () => undefined,
    );
    // Several beats later.
    await delay(1000);
    expect(agent.process.exitCode).toBeNull();
    expect(await textOf(await site.ask(other, 'count 1'))).toContain('[DONE]');
    socket.destroy();
  });

  test('an engine that is killed is DOWN at once and comes back as a new session', async () => {
    await using site = await Site.open();
    const agent = await site.start([fixtureUnit('m')]);
    const first = await site.serving('m');
    const answer = await site.ask(first, 'crash').catch(() => undefined);
    expect(answer === undefined || answer.statusCode === 502).toBe(true);
    const down = await eventually(() => {
      const record = site.registry.get(first.session_id)!;
      return record.lifecycle === 'DOWN' || record.lifecycle === 'LEFT' ? record : undefined;
    }, 'its session is over');
    if (down.lifecycle === 'DOWN') {
      expect(down.metadata.models[0]).toMatchObject({
        state: 'failed',
        error: 'command ended while it served m', // one line; the whole error is in the state
      });
    }
    const log = await eventually(async () => {
      const text = await readFile(join(agent.launch.launch_folder, 'n0.agent.log'), 'utf8');
      return text.split('\n').find((line) => line.includes('E_AGENT_ENGINE_EXIT'));
    }, 'the log says why');
    expect(JSON.parse(log).error.because).toEqual([
      expect.stringMatching(/^it was killed \(SIGKILL\), perhaps out of memory/),
      expect.any(String),
      expect.any(String),
      'out of memory, sorry',
    ]);
    const second = await site.serving('m');
    expect(second.session_id).not.toBe(first.session_id);
    expect(await textOf(await site.ask(second, 'count 1'))).toContain('[DONE]');
    await agent.stateWhere((now) => now.phase === 'serving', 'it serves again');
  });

  test('an engine that ends before it serves: the agent says why, and exits with its code', async () => {
    await using site = await Site.open();
    const agent = await site.start([fixtureUnit('m', ['--fail'])]);
    expect(await agent.ended).toEqual({ code: 8, signal: null });
    const state = (await agent.state())!;
    expect(state).toMatchObject({ phase: 'failed', error: { code: 'E_AGENT_UNITS_FAILED' } });
    expect(state.sessions.find((session) => session.unit)?.error).toMatchObject({
      code: 'E_AGENT_ENGINE_EXIT',
      what: 'command ended before it served m',
      because: [
        'it exited with code 3',
        // What says why comes first.
        'fatal: no such precision: fp3; the key was [key]',
        'reading settings',
      ],
    });
    expect(agent.stderr).toContain('fatal: no such precision: fp3');
  });

  test.each([
    ['a program that is not there', ['/no/such/engine', '{socket}'], 'E_AGENT_ENGINE_START', 'not found'],
    [
      'a command that says nowhere to listen',
      ['true'],
      'E_AGENT_ENGINE_OPTION',
      'neither {socket} nor {port}',
    ],
    [
      'an option that its version does not take',
      [
        ...[
          'python3',
          '-c',
          'import argparse; p = argparse.ArgumentParser(); p.add_argument("--uds"); p.parse_args()',
        ],
        ...['--uds', '{socket}', '--no-such-thing'],
      ],
      'E_AGENT_ENGINE_OPTION',
      'unrecognized arguments: --no-such-thing',
    ],
  ])('%s', async (_what, command, code, words) => {
    await using site = await Site.open();
    const agent = await site.start([unitOf({ name: 'm', command })]);
    expect((await agent.ended).code).toBe(8);
    const { sessions } = (await agent.state())!;
    const { error } = sessions.find((session) => session.unit)!;
    expect(error!.code).toBe(code);
    expect([error!.what, ...error!.because].join()).toContain(words);
  });

  test('an engine that never becomes ready', async () => {
    await using site = await Site.open();
    const agent = await site.start(
      [unitOf({ name: 'm', command: ['sleep', '60', '{socket}'] })],
      {},
      {
        HPCSERVE_ENGINE_READY_S: '1',
      },
    );
    // `sleep` refuses the path; so a program that takes it and does nothing:
    await agent.ended;
    const waiting = await site.start(
      [unitOf({ name: 'm', command: ['sh', '-c', 'exec sleep 60', '{socket}'] })],
      {},
      { HPCSERVE_ENGINE_READY_S: '1' },
    );
    expect((await waiting.ended).code).toBe(8);
    expect(JSON.stringify(await waiting.state())).toContain('did not serve m within 1 s');
  });

  test('a model path that the node does not have fails that unit only', async () => {
    await using site = await Site.open();
    const agent = await site.start([
      fixtureUnit('good'),
      fixtureUnit('bad', [], { model_path: '/no/such/model.gguf' }),
    ]);
    await site.serving('good');
    const state = await agent.stateWhere(
      (now) => now.sessions.some((session) => session.error !== undefined),
      'the failure shows',
    );
    expect(state.sessions.find((session) => session.unit === 'bad-0')).toMatchObject({
      error: { code: 'E_AGENT_MODEL_PATH' },
      models: [{ state: 'failed', error: expect.stringContaining('/no/such/model.gguf') }],
    });
    await agent.stateWhere((now) => now.phase === 'serving', 'the other serves');
  });

  test('devices that the job does not have', async () => {
    await using site = await Site.open();
    const agent = await site.start([fixtureUnit('m', [], { device_kind: 'gpu', device_count: 64 })]);
    expect((await agent.ended).code).toBe(8);
    const unit = (await agent.state())!.sessions.find((session) => session.unit);
    expect(unit!.error).toMatchObject({ code: 'E_AGENT_DEVICES' });
  });

  test('no child outlives an agent that is killed, nor what the child started', async () => {
    await using site = await Site.open();
    const agent = await site.start([fixtureUnit('m', ['--child'])]);
    const pid = await agent.pidOf(await site.serving('m'));
    const said = await eventually(
      async () => (await agent.engineLog('m-0')).find((line) => line.startsWith('child')),
      'the engine to have said what it started',
    );
    const grandchild = Number(said.split(' ')[1]);
    expect([alive(pid), alive(grandchild)]).toEqual([true, true]);
    agent.process.kill('SIGKILL');
    await agent.ended;
    await eventually(() => !alive(pid) && !alive(grandchild), 'both are gone', 5000);
    await eventually(async () => (await readdir(join(site.folder, 'run'))).length === 0, 'sockets are gone');
  });

  test('a launch that runs again replaces the sessions of the run before', async () => {
    await using site = await Site.open();
    const agent = await site.start([fixtureUnit('m')]);
    const before = await site.serving('m');
    await agent.kill();
    expect(site.registry.get(before.session_id)?.lifecycle).toBe('SERVING');
    const again = agent.again();
    await eventually(() => site.registry.get(before.session_id)?.lifecycle === 'LEFT', 'the old one is LEFT');
    const after = await site.serving('m');
    expect(after.session_id).not.toBe(before.session_id);
    again.process.kill('SIGTERM');
    await again.ended;
  });

  test('a port that is taken: the next of the range', async () => {
    await using site = await Site.open();
    const taken = createServer();
    await new Promise<void>((resolve) => taken.listen(0, '127.0.0.1', resolve));
    const { port } = taken.address() as { port: number };
    await site.start([fixtureUnit('m')], { port_range: [port, port + 20] });
    const record = await site.serving('m');
    expect(record.metadata.addresses[0]!.port).toBeGreaterThan(port);
    const agent = await site.start([fixtureUnit('other')], { port_range: [port, port] });
    expect((await agent.ended).code).toBe(12);
    expect(await agent.state()).toMatchObject({ phase: 'failed', error: { code: 'E_AGENT_PORT' } });
    taken.close();
  });

  test('a mesh folder that is away at the start is waited for; one that vanishes is reported; both recover', async () => {
    await using site = await Site.open();
    const away = `${site.mesh_folder}.away`;
    await rename(site.mesh_folder, away);
    const agent = await site.start([fixtureUnit('m')]);
    const noticed = await agent.stateWhere((now) => now.notices !== undefined, 'it says so');
    expect(noticed.notices).toMatchObject([{ code: 'E_MESH_FOLDER' }]);
    await rename(away, site.mesh_folder);
    const record = await site.serving('m');
    await agent.stateWhere((now) => now.notices === undefined, 'it says that all is well');
    await rename(site.mesh_folder, away);
    await agent.stateWhere((now) => now.notices?.[0]?.code === 'E_MESH_FOLDER', 'it says so again');
    expect(await textOf(await site.ask(record, 'count 1')), 'and serves on').toContain('[DONE]');
    await rename(away, site.mesh_folder);
    await agent.stateWhere((now) => now.notices === undefined, 'it says that all is well again');
  });

  test('state and log that cannot be written are reported over the mesh, and written when they can', async () => {
    await using site = await Site.open();
    const agent = await site.start([fixtureUnit('m')]);
    const record = await site.serving('m');
    const { launch_folder } = agent.launch;
    await agent.stateWhere((now) => now.phase === 'serving', 'serving');
    await rename(launch_folder, `${launch_folder}.away`);
    agent.process.kill('SIGUSR1'); // something to write
    const pool = site.pool(record);
    const notices = await eventually(async () => {
      const answer = await pool.request({ method: 'GET', path: agentPaths.state });
      return ((await answer.body.json()) as AgentState).notices;
    }, 'it says so where it can');
    expect(notices[0]).toMatchObject({ code: 'E_AGENT_STATE', because: [expect.stringContaining('ENOENT')] });
    expect(await textOf(await site.ask(record, 'count 1'))).toContain('[DONE]');
    await rename(`${launch_folder}.away`, launch_folder);
    const state = await agent.stateWhere(
      (now) => now.walltime_warning_at_ms !== undefined,
      'written after all',
    );
    expect(state.phase).toBe('serving');
  });

  test('whoever started the agent may go, and take the other end of its stderr along', async () => {
    await using site = await Site.open();
    const agent = await site.start([
      fixtureUnit('m'),
      fixtureUnit('bad', [], { model_path: '/no/such/model' }),
    ]);
    agent.process.stderr!.destroy(); // before the failure of `bad` is written to it
    const record = await site.serving('m');
    await agent.stateWhere((now) => JSON.stringify(now).includes('E_AGENT_MODEL_PATH'), 'the failure shows');
    expect(await textOf(await site.ask(record, 'count 1'))).toContain('[DONE]');
    expect(agent.process.exitCode).toBe(null);
  });

  test('a second SIGTERM does not wait for running requests', async () => {
    await using site = await Site.open();
    const agent = await site.start([fixtureUnit('m')], {}, { HPCSERVE_DRAIN_S: '60' });
    const record = await site.serving('m');
    const answer = await site.ask(record, 'hang');
    agent.process.kill('SIGTERM');
    await eventually(() => site.registry.get(record.session_id)?.lifecycle === 'DOWN', 'it drains');
    expect(agent.process.exitCode).toBe(null);
    await delay(2000); // sooner it is the same request by another way
    expect(agent.process.exitCode).toBe(null);
    agent.process.kill('SIGTERM');
    expect(await agent.ended).toEqual({ code: 0, signal: null });
    await expect(textOf(answer)).rejects.toThrow();
  });

  test('Ctrl-C, which reaches it from the terminal and from who started it, lets running requests end', async () => {
    await using site = await Site.open();
    const agent = await site.start([fixtureUnit('m')], {}, { HPCSERVE_DRAIN_S: '30' });
    const record = await site.serving('m');
    const answer = await site.ask(record, 'count 800');
    // In the same breath: much later, the second would be taken for impatience.
    agent.process.kill('SIGINT');
    agent.process.kill('SIGTERM');
    await eventually(() => site.registry.get(record.session_id)?.lifecycle === 'DOWN', 'it drains');
    expect(await textOf(answer)).toContain('[DONE]');
    expect(await agent.ended).toEqual({ code: 0, signal: null });
  });

  test('SIGUSR1, the warning before the time limit, is marked; neither agent nor engine end by it', async () => {
    await using site = await Site.open();
    const agent = await site.start([
      unitOf({
        name: 'm',
        // A program that, like most, knows nothing of the signal.
        command: [
          'sh',
          '-c',
          `"$0" "$1" "$2"; exit`,
          process.execPath,
          fixtureUnit('m').model_path,
          '{socket}',
        ],
      }),
    ]);
    const pid = await agent.pidOf(await site.serving('m'));
    process.kill(pid, 'SIGUSR1');
    agent.process.kill('SIGUSR1');
    await agent.stateWhere((now) => now.walltime_warning_at_ms !== undefined, 'it is marked');
    expect(alive(pid)).toBe(true);
    expect(await textOf(await site.ask(await site.serving('m'), 'count 1'))).toContain('[DONE]');
  });

  test('a launch file that is damaged, or missing', async () => {
    await using site = await Site.open();
    const agent = await site.start([], { format: 2 as 1 });
    expect((await agent.ended).code).toBe(12);
    expect(agent.stderr).toContain('E_AGENT_LAUNCH');
  });
});
