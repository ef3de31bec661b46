/** Ollama, which knows neither keys nor unix sockets: what is started, and that only the agent reaches it. */
import { spawnSync } from 'node:child_process';
import { chmod, mkdir, readFile, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { adapterOf } from '../../../agent/adapters/index.ts';
import { scratchFolder } from '../../mesh/support.ts';
import { alive, Site, unitOf } from '../support.ts';

const context = {
  runtime_folder: '/run/u0-0',
  port: 40123,
  key: 'k'.repeat(64),
  engine_prefix: ['apptainer', 'exec', '--nv', '/images/ollama.sif'],
  emulated: false,
  probed: { version: '0.12.3', unix_socket: false },
};

test('the command line, the store and the plan', () => {
  const unit = unitOf(
    { name: 'llama', kv_type: 'q8_0' },
    { model_path: '/m/llama.gguf', context_tokens: 8192 },
  );
  const line = adapterOf('ollama').commandLine(unit, context);
  expect(line).toEqual({
    argv: [
      ...['unshare', '--map-root-user', '--net', '--', process.execPath],
      expect.stringMatching(/\/dist\/agent\/private-network\/main\.js$/),
      '/run/u0-0/plan.json',
    ],
    env: {
      OLLAMA_HOST: '127.0.0.1:40123',
      OLLAMA_MODELS: '/run/u0-0/models',
      OLLAMA_CONTEXT_LENGTH: '8192',
      OLLAMA_NUM_PARALLEL: '16',
      OLLAMA_MAX_LOADED_MODELS: '1',
      OLLAMA_KEEP_ALIVE: '-1',
      OLLAMA_KV_CACHE_TYPE: 'q8_0',
      OLLAMA_FLASH_ATTENTION: '1',
    },
    listen: { kind: 'socket', path: '/run/u0-0/engine.sock' },
    files: [
      {
        path: '/run/u0-0/plan.json',
        content: JSON.stringify({
          socket: '/run/u0-0/engine.sock',
          port: 40123,
          serve: [...context.engine_prefix, 'ollama', 'serve'],
          first: [[...context.engine_prefix, 'ollama', 'create', 'llama', '--file', '/run/u0-0/Modelfile']],
        }),
      },
      { path: '/run/u0-0/Modelfile', content: 'FROM /m/llama.gguf\n' },
    ],
    links: [],
  });
});

test.each([
  ['ollama version is 0.12.3\n', '0.12.3'],
  ['Warning: could not connect to a running Ollama instance\nWarning: client version is 0.9.0\n', '0.9.0'],
  ['unshare: unshare failed: Operation not permitted\n', undefined],
])('what `ollama --version` prints: %j', (output, version) => {
  expect(adapterOf('ollama').parseProbe!(output)?.version).toBe(version);
});

test.each([
  [{ chat_template: '/t.jinja' }, {}, 'E_AGENT_ENGINE_OPTION'],
  [{ precision: 'fp8' }, {}, 'E_AGENT_ENGINE_OPTION'],
  [{ engine_args: ['--x'] }, {}, 'E_AGENT_ENGINE_OPTION'],
  [{}, { device_count: 2 }, 'E_AGENT_ENGINE_OPTION'],
])('%j %j is refused', (model, unit, code) => {
  const asked = unitOf({ name: 'm', ...model }, unit);
  expect(() => adapterOf('ollama').commandLine(asked, context)).toThrow(expect.objectContaining({ code }));
});

/** Does what Ollama's command line and its OpenAI routes do, and refuses everything else. */
const standIn = `#!${process.execPath}
const http = require('node:http'), fs = require('node:fs');
const [verb, ...rest] = process.argv.slice(2);
const [host, port] = (process.env.OLLAMA_HOST ?? '127.0.0.1:11434').split(':');
if (verb === '--version') console.log('Warning: client version is 0.0.1');
else if (verb === 'serve' && rest.length === 0) {
  const models = new Map();
  http.createServer(async (request, response) => {
    let body = '';
    for await (const chunk of request) body += chunk;
    const json = (status, value) => response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(value));
    const asked = request.method + ' ' + request.url;
    if (asked === 'POST /api/create') { const { model, from } = JSON.parse(body); models.set(model, from); return json(200, { status: 'success' }); }
    if (asked === 'GET /v1/models') return json(200, { object: 'list', data: [...models.keys()].map((id) => ({ id })) });
    if (asked === 'POST /v1/chat/completions' && models.has(JSON.parse(body).model))
      return json(200, { from: models.get(JSON.parse(body).model), interfaces: Object.keys(require('node:os').networkInterfaces()) });
    json(404, { error: asked });
  }).listen(Number(port), host);
} else if (verb === 'create' && rest.length === 3 && rest[1] === '--file') {
  const from = /^FROM (.+)$/m.exec(fs.readFileSync(rest[2], 'utf8'))[1];
  fs.accessSync(from);
  const request = http.request({ host, port, method: 'POST', path: '/api/create' }, (answer) => process.exit(answer.statusCode === 200 ? 0 : 1));
  request.end(JSON.stringify({ model: rest[0], from }));
} else { console.error('unknown command ' + verb); process.exit(2); }
`;

const permitted = spawnSync('unshare', ['--map-root-user', '--net', '--', 'true']).status === 0;
const name = `a server in a network of its own${permitted ? '' : ' [skipped: needs user namespaces]'}`;
describe.skipIf(!permitted)(name, () => {
  test('serves its model through the agent, and has no port that anybody else could reach', async () => {
    await using site = await Site.open();
    await using scratch = await scratchFolder();
    const bin = join(scratch.path, 'bin');
    await mkdir(bin);
    await writeFile(join(bin, 'ollama'), standIn);
    await chmod(join(bin, 'ollama'), 0o755);
    const model_path = join(scratch.path, 'm.gguf');
    await writeFile(model_path, 'GGUF');
    const agent = await site.start(
      [unitOf({ name: 'm' }, { engine: 'ollama', model_path })],
      {},
      {
        PATH: `${bin}:${process.env.PATH}`,
      },
    );
    const record = await site.serving('m', 20_000);
    expect(record.metadata.engine_version).toBe('0.0.1');
    const answer = await site.ask(record, 'x');
    expect(await answer.body.json()).toEqual({ from: model_path, interfaces: ['lo'] });
    // Its port is one of its own loopback: on the node's nobody listens there.
    const pid = await agent.pidOf(record);
    const environment = await readFile(`/proc/${pid}/environ`, 'utf8');
    const port = Number(/OLLAMA_HOST=127\.0\.0\.1:(\d+)/.exec(environment)![1]);
    expect(await listens(port)).toBe(false);
    agent.process.kill('SIGTERM');
    expect(await agent.ended).toEqual({ code: 0, signal: null });
    expect(alive(pid)).toBe(false);
  });
});

test('where there is no such network, or no Ollama, it is not started at all', async () => {
  await using site = await Site.open();
  const agent = await site.start(
    [unitOf({ name: 'm' }, { engine: 'ollama', model_path: process.execPath })],
    {},
    {
      PATH: '/nowhere',
    },
  );
  expect((await agent.ended).code).toBe(8);
  const { sessions } = (await agent.state())!;
  expect(sessions.find(({ unit }) => unit === 'm-0')!.error).toMatchObject({
    code: 'E_AGENT_ENGINE_EXPOSED',
  });
});

/** Whether somebody listens there on this node's loopback. */
function listens(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.once('connect', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => resolve(false));
  });
}
