/**
 * What another ordinary user of the same node can reach of a node agent: real processes, and an attacker that runs
 * as another user. The folders above are opened on purpose, so that every file has to protect itself.
 */
import { spawn, spawnSync } from 'node:child_process';
import { chmod, readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import { fixtureEngine, fixtureUnit, type RunningAgent, Site, unitOf } from '../agent/support.ts';
import { eventually } from '../mesh/support.ts';

const root = process.getuid?.() === 0;
/** `nobody`: a user that is not the agent's. */
const stranger = { uid: 65_534, gid: 65_534 };

/** Runs JavaScript as the stranger; what it writes to stdout. */
function asStranger(script: string, ...args: string[]): string {
  const { stdout, stderr, status } = spawnSync(process.execPath, ['-e', script, ...args], {
    ...stranger,
    cwd: '/',
    env: { PATH: '/usr/bin:/bin' },
    encoding: 'utf8',
    timeout: 20_000,
  });
  if (status !== 0) throw new Error(stderr);
  return stdout;
}

/** Everything below the folders that the stranger can read or list, and sockets that it can connect to. */
const reach = `
  const fs = require('node:fs'), net = require('node:net'), path = require('node:path');
  const found = [];
  const visit = (file) => {
    let stat;
    try { stat = fs.lstatSync(file); } catch { return; }
    if (stat.isDirectory()) {
      let names;
      try { names = fs.readdirSync(file); } catch { return; }
      for (const name of names) visit(path.join(file, name));
    } else if (stat.isSocket()) net.connect(file).on('connect', function () { found.push('socket ' + file); this.destroy(); }).on('error', () => {});
    else try { fs.readFileSync(file); found.push('file ' + file); } catch {}
    try { fs.accessSync(file, fs.constants.W_OK); found.push('write ' + file); } catch {}
  };
  process.argv.slice(1).forEach(visit);
  process.on('exit', () => console.log(found.join('\\n')));
`;

describe.skipIf(!root)('another user of the node', () => {
  let site: Site;
  let agent: RunningAgent;
  let pids: number[];

  beforeAll(async () => {
    site = await Site.open();
    await chmod(site.folder, 0o755);
    const model_path = join(site.folder, 'toy.gguf');
    await synthesize({ path: model_path, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
    await chmod(model_path, 0o600);
    agent = await site.start([
      unitOf({ name: 'toy' }, { engine: 'native', model_path }),
      fixtureUnit('by-socket'),
      fixtureUnit('by-port', [], {}, '{port}'),
    ]);
    await site.serving('toy', 20_000);
    await site.serving('by-socket');
    await site.serving('by-port');
    for (const folder of [agent.launch.launch_folder, join(site.folder, 'run')]) await chmod(folder, 0o755);
    // It is written down a moment after it is announced.
    const state = await agent.stateWhere(
      ({ sessions }) => sessions.filter(({ pid }) => pid !== undefined).length === 4,
      'four processes',
    );
    pids = state.sessions.flatMap((session) => session.pid ?? []);
    expect(new Set(pids).size).toBe(4);
  }, 60_000);
  afterAll(() => site?.[Symbol.asyncDispose]());

  test('reads no state, log, key or socket, and writes nothing', async () => {
    const reached = asStranger(reach, site.folder).split('\n').filter(Boolean);
    // What the test itself wrote with the modes of anybody's files.
    expect(reached.filter((line) => !line.endsWith('/launch.json'))).toEqual([]);
    const files = await readdir(agent.launch.launch_folder);
    expect(files.length).toBeGreaterThan(4);
    for (const name of files.filter((file) => file !== 'launch.json')) {
      expect([name, (await stat(join(agent.launch.launch_folder, name))).mode & 0o777]).toEqual([
        name,
        0o600,
      ]);
    }
  });

  test('learns no secret from the process table', async () => {
    const keys = new Set<string>();
    for (const pid of pids) {
      for (const line of (await readFile(`/proc/${pid}/environ`, 'utf8')).split('\0')) {
        const key = /^HPCSERVE_ENGINE_KEY=(.+)$/.exec(line)?.[1];
        if (key) keys.add(key);
      }
    }
    expect(keys.size).toBe(2);
    const read = `
      const fs = require('node:fs');
      for (const pid of fs.readdirSync('/proc').filter((name) => /^\\d+$/.test(name)))
        for (const name of ['cmdline', 'environ', 'maps', 'auxv'])
          try { console.log(pid, name, fs.readFileSync('/proc/' + pid + '/' + name, 'latin1').replaceAll('\\0', ' ')); } catch {}`;
    const seen = asStranger(read);
    for (const pid of pids) {
      expect(seen).toContain(`${pid} cmdline`);
      expect(seen).not.toContain(`${pid} environ`);
      expect(seen).not.toContain(`${pid} maps`);
    }
    for (const key of keys) expect(seen).not.toContain(key);
  });

  test('gets no answer from any port or socket without a key', async () => {
    const engines = await Promise.all(pids.map((pid) => readFile(`/proc/${pid}/cmdline`, 'utf8')));
    const engine_port = engines.flatMap((line) => /\0(\d{4,5})\0/.exec(line)?.[1] ?? [])[0]!;
    const agent_port = (await site.serving('toy')).metadata.addresses[0]!.port;
    const listening = (await readFile('/proc/net/tcp', 'utf8')) + (await readFile('/proc/net/tcp6', 'utf8'));
    for (const port of [engine_port, agent_port]) {
      const hex = Number(port).toString(16).toUpperCase().padStart(4, '0');
      const listener = new RegExp(`: [0-9A-F]+:${hex} [0-9A-F:]+ 0A \\S+ \\S+ \\S+ +(\\d+) `, 'g');
      expect([...listening.matchAll(listener)].map(([, uid]) => uid)).toEqual(['0']);
    }
    const ask = `
      const http = require('node:http');
      const [port] = process.argv.slice(1);
      for (const headers of [{}, { authorization: 'Bearer ' }, { authorization: 'Bearer ' + '0'.repeat(64) }])
        http.get({ port, host: '127.0.0.1', path: '/v1/models', headers }, (answer) => { console.log(answer.statusCode); answer.resume(); })
          .on('error', (error) => console.log(error.code));`;
    expect(asStranger(ask, engine_port).trim().split('\n')).toEqual(['401', '401', '401']);
    for (const line of asStranger(ask, String(agent_port)).trim().split('\n')) expect(line).toMatch(/^E|HPE/);
  });

  test("cannot end, stop or trace the agent's processes", () => {
    const kill = `
      for (const pid of process.argv.slice(1)) for (const signal of ['SIGTERM', 'SIGSTOP', 'SIGUSR1'])
        try { process.kill(Number(pid), signal); console.log('signalled'); } catch (error) { console.log(error.code); }`;
    const seen = asStranger(kill, ...pids.map(String))
      .trim()
      .split('\n');
    expect(new Set(seen)).toEqual(new Set(['EPERM']));
  });

  test('that listens on the port of an engine at other addresses disturbs neither its requests nor its health', async () => {
    // Looked at every second, and killed after three looks in a row that fail.
    const timeouts = { health_s: 9 };
    const own = await site.start([
      unitOf({ name: 'squatted', timeouts, command: [process.execPath, fixtureEngine, '{port}'] } as never),
    ]);
    const record = await site.serving('squatted');
    const pid = await own.pidOf(record);
    const port = /\0(\d{4,5})\0/.exec(await readFile(`/proc/${pid}/cmdline`, 'utf8'))![1]!;
    const squatter = spawn(
      process.execPath,
      [
        '-e',
        `
        const net = require('node:net');
        let left = 2;
        for (const host of ['127.0.0.2', '::1'])
          net.createServer((socket) => { console.log('connected'); socket.destroy(); })
            .listen({ port: Number(process.argv[1]), host, ipv6Only: host === '::1' }, () => { if (--left === 0) console.log('squats'); });
        setTimeout(() => process.exit(), 20_000);`,
        port,
      ],
      { ...stranger, cwd: '/', env: {}, stdio: ['ignore', 'pipe', 'inherit'] },
    );
    let seen = '';
    squatter.stdout.on('data', (chunk: Buffer) => {
      seen += chunk.toString();
    });
    try {
      await eventually(() => seen.includes('squats'), 'the squatter listens');
      const answers = await Promise.all(
        Array.from({ length: 20 }, async () => {
          const { statusCode, body } = await site.ask(record, 'count 2');
          return `${statusCode} ${(await body.text()).includes('[DONE]')}`;
        }),
      );
      expect(new Set(answers)).toEqual(new Set(['200 true']));
      await new Promise((resolve) => setTimeout(resolve, 5000));
      expect(site.registry.get(record.session_id)?.lifecycle).toBe('SERVING');
      expect(await own.pidOf(record)).toBe(pid);
      expect(seen).not.toContain('connected');
    } finally {
      squatter.kill('SIGKILL');
    }
  });

  test('that takes the port of an engine before it does gets neither its key nor a request', async () => {
    const thief = spawn(
      process.execPath,
      [
        '-e',
        `
        const fs = require('node:fs'), http = require('node:http');
        // As anybody can: wait until the port shows up in the engine's arguments, and be faster than it.
        const timer = setInterval(() => {
          for (const pid of fs.readdirSync('/proc').filter((name) => /^\\d+$/.test(name))) {
            let line = '';
            try { line = fs.readFileSync('/proc/' + pid + '/cmdline', 'latin1'); } catch { continue; }
            const port = /late-engine\\0(\\d+)\\0/.exec(line)?.[1];
            if (!port) continue;
            clearInterval(timer);
            http.createServer((request, response) => {
              console.log('got ' + request.method + ' ' + request.headers.authorization);
              response.end('{}');
            }).on('connection', () => console.log('connected')).listen(Number(port), '127.0.0.1', () => console.log('took ' + port));
            return;
          }
        }, 20);
        setTimeout(() => process.exit(), 20_000);`,
      ],
      { ...stranger, cwd: '/', env: {}, stdio: ['ignore', 'pipe', 'inherit'] },
    );
    let seen = '';
    thief.stdout.on('data', (chunk: Buffer) => {
      seen += chunk.toString();
    });
    try {
      // It comes to its port long after somebody is there: the agent, which looks all the time, sees the other one
      // first.
      const waits = 'until grep -qi ":$(printf %04X "$3") " /proc/net/tcp; do sleep 0.1; done; sleep 30';
      const command = ['sh', '-c', `${waits}; exec "$0" "$1" "$3"`, process.execPath, fixtureEngine];
      const late = await site.start([
        unitOf({ name: 'late', command: [...command, 'late-engine', '{port}', '-'] }),
      ]);
      await eventually(() => seen.includes('took'), 'the thief has the port');
      expect((await late.ended).code).toBe(8);
      const unit = (await late.state())!.sessions.find((session) => session.unit)!;
      expect(unit.error).toMatchObject({
        code: 'E_AGENT_ENGINE_PORT',
        because: [expect.stringContaining(`user id ${stranger.uid}`)],
      });
      expect(seen).toContain('connected');
      expect(seen).not.toContain('got');
    } finally {
      thief.kill('SIGKILL');
    }
  });
});
