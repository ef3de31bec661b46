/** Servers in Python are brought onto a socket with a real uvicorn, however they start it. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

import { Client, request } from 'undici';
import { describe, expect, test } from 'vitest';
import { onSocket, unbindableHost } from '../../../agent/adapters/python-socket.ts';
import { pythonWith } from '../../engines/environments.ts';
import { freePort } from '../../free-port.ts';
import { eventually, scratchFolder } from '../../mesh/support.ts';

const { found: python, lacking } = pythonWith(['starlette', 'uvicorn']);

const server = `
import asyncio, socket, sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
app = Starlette(routes=[Route("/health", lambda request: PlainTextResponse(sys.argv[0]))])
def run():
    uvicorn.run(app, host=sys.argv[1], port=int(sys.argv[2]))
def bound():
    with socket.socket() as bound:
        bound.bind((sys.argv[1], int(sys.argv[2])))
        config = uvicorn.Config(app, host=sys.argv[1], port=int(sys.argv[2]))
        asyncio.run(uvicorn.Server(config).serve(sockets=[bound]))
`;

describe.skipIf(lacking !== '')(`a server in Python${lacking}`, () => {
  test.each([
    ['by uvicorn.run, with a host that does not exist', 'server-run', unbindableHost],
    ['with a port that it bound itself', 'server-bound', '127.0.0.1'],
  ])(
    'that starts %s answers on the socket alone',
    async (_, script, host) => {
      await using scratch = await scratchFolder();
      const facts = join(scratch.path, 'server-1.0.dist-info');
      await mkdir(facts);
      await writeFile(join(facts, 'METADATA'), 'Metadata-Version: 2.1\nName: server\nVersion: 1.0\n');
      await writeFile(
        join(facts, 'entry_points.txt'),
        '[console_scripts]\nserver-run = server:run\nserver-bound = server:bound\n',
      );
      await writeFile(join(scratch.path, 'server.py'), server);
      const socket = join(scratch.path, 'engine.sock');
      const port = await freePort();
      const child = spawn(python!, ['-c', onSocket(script), host, String(port)], {
        env: { ...process.env, PYTHONPATH: scratch.path, HPCSERVE_ENGINE_SOCKET: socket },
        stdio: ['ignore', 'pipe', 'pipe'],
      });
      let log = '';
      for (const stream of [child.stdout, child.stderr])
        stream.on('data', (chunk: Buffer) => {
          log += chunk.toString();
        });
      try {
        const there = await eventually(() => stat(socket).catch(() => undefined), 'a socket', 20_000);
        expect(there.isSocket()).toBe(true);
        const client = new Client('http://engine', { socketPath: socket });
        const answer = await client.request({ method: 'GET', path: '/health' });
        expect(await answer.body.text()).toBe(script);
        const other = await client.request({ method: 'GET', path: '/elsewhere' });
        await other.body.dump();
        await client.close();
        // Others' requests are in its log, what the agent asks all the time is not.
        await expect.poll(() => log).toMatch(/GET \/elsewhere/);
        expect(log).not.toMatch(/GET \/health/);
        await expect(request(`http://127.0.0.1:${port}/health`)).rejects.toThrow(/ECONNREFUSED/);
      } finally {
        child.kill('SIGKILL');
        await once(child, 'exit');
      }
    },
    40_000,
  );
});
