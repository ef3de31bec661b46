/** What sites put in front of a gateway: a proxy that has it below a path of its own. */
import { createServer, request } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface PrefixProxy extends AsyncDisposable {
  /** Of the gateway as browsers see it, without a slash at its end. */
  url: string;
  /** Paths that were asked beside the prefix. */
  strayed: string[];
}

export async function prefixProxy(prefix: string, gateway_url: string): Promise<PrefixProxy> {
  const strayed: string[] = [];
  const server = createServer((asked, answer) => {
    const path = asked.url ?? '';
    if (!path.startsWith(`${prefix}/`)) {
      strayed.push(path);
      answer.writeHead(404).end();
      return;
    }
    const { method, headers } = asked;
    const passed = request(gateway_url + path.slice(prefix.length), { method, headers }, (got) => {
      answer.writeHead(got.statusCode!, got.headers);
      got.pipe(answer);
    });
    answer.on('close', () => passed.destroy());
    passed.on('error', () => answer.destroy());
    asked.pipe(passed);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}${prefix}`,
    strayed,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
