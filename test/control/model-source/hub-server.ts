import { createHash } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface ServedFile {
  content: Buffer;
  /** Replaces the right ETag. */
  etag?: string;
  /** `X-Linked-Etag`: the SHA-256 of large files. */
  linked_etag?: string;
  /** Bytes of the body after which the connection is destroyed, one entry an answer; then none is. */
  cuts?: number[];
  /** Bytes the client has on disk: a connection is cut only when what was sent has arrived. */
  arrived?: () => number;
  on_cut?: () => void;
  ignore_range?: boolean;
  ignore_if_range?: boolean;
  /** Statuses to answer first. */
  statuses?: number[];
  /** No ETag and no Last-Modified. */
  anonymous?: boolean;
  redirect_to?: string;
  content_type?: string;
  /** Called when a GET begins, with the number of such requests so far. */
  on_get?: (count: number) => void;
}

export interface SeenRequest {
  method: string;
  path: string;
  range: string | undefined;
  if_range: string | undefined;
  authorization: string | undefined;
}

/** A small hub on loopback, with the bad habits that downloads meet: cut connections, no Range, changed files. */
export class HubServer implements AsyncDisposable {
  readonly files = new Map<string, ServedFile>();
  readonly seen: SeenRequest[] = [];
  readonly #server: Server;
  #gets = new Map<string, number>();

  private constructor(server: Server) {
    this.#server = server;
  }

  static async start(): Promise<HubServer> {
    const server = createServer();
    const hub = new HubServer(server);
    server.on('request', (request, response) => hub.#answer(request, response));
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    return hub;
  }

  get origin(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }

  /** Serves `files` as the revision `main` of a repository, large ones with their SHA-256, small ones as git blobs. */
  addRepository(id: string, commit: string, files: Record<string, ServedFile>): void {
    const siblings = Object.entries(files).map(([rfilename, file]) => ({
      rfilename,
      size: file.content.length,
    }));
    this.files.set(`/api/models/${id}/revision/main`, {
      content: Buffer.from(JSON.stringify({ sha: commit, siblings })),
    });
    for (const [name, file] of Object.entries(files)) {
      if (file.linked_etag === undefined) file.etag ??= `"${gitObjectId(file.content)}"`;
      this.files.set(`/${id}/resolve/${commit}/${name}`, file);
    }
  }

  requests(method: string, ending: string): SeenRequest[] {
    return this.seen.filter((entry) => entry.method === method && entry.path.endsWith(ending));
  }

  #answer(request: IncomingMessage, response: ServerResponse): void {
    const url = new URL(request.url ?? '/', this.origin);
    const { range, authorization } = request.headers;
    const if_range = request.headers['if-range'] as string | undefined;
    this.seen.push({ method: request.method ?? '', path: url.pathname, range, if_range, authorization });
    const file = this.files.get(decodeURIComponent(url.pathname));
    if (!file) {
      response.writeHead(404).end();
      return;
    }
    const status = file.statuses?.shift();
    if (status !== undefined) {
      response.writeHead(status, { 'retry-after': '0' }).end('busy');
      return;
    }
    if (request.method === 'GET') {
      const count = (this.#gets.get(url.pathname) ?? 0) + 1;
      this.#gets.set(url.pathname, count);
      file.on_get?.(count);
    }
    this.#send(request, response, file, range, if_range);
  }

  #send(
    request: IncomingMessage,
    response: ServerResponse,
    file: ServedFile,
    range: string | undefined,
    if_range: string | undefined,
  ): void {
    const { content } = file;
    const etag = file.etag ?? `"${sha256(content).slice(0, 16)}"`;
    const headers: Record<string, string> = {
      'content-type': file.content_type ?? 'application/octet-stream',
      ...(file.anonymous ? {} : { etag }),
      ...(file.linked_etag
        ? { 'x-linked-etag': `"${file.linked_etag}"`, 'x-linked-size': String(content.length) }
        : {}),
    };
    if (file.redirect_to !== undefined) {
      response.writeHead(302, { ...headers, location: file.redirect_to }).end();
      return;
    }
    const from = Number(/^bytes=(\d+)-$/.exec(range ?? '')?.[1] ?? -1);
    const partial =
      from >= 0 && !file.ignore_range && (file.ignore_if_range || !if_range || if_range === etag);
    if (partial && from >= content.length) {
      response.writeHead(416, { 'content-range': `bytes */${content.length}` }).end();
      return;
    }
    const body = partial ? content.subarray(from) : content;
    headers['content-length'] = String(body.length);
    if (partial) headers['content-range'] = `bytes ${from}-${content.length - 1}/${content.length}`;
    response.writeHead(partial ? 206 : 200, headers);
    if (request.method === 'HEAD') {
      response.end();
      return;
    }
    const cut = file.cuts?.shift();
    if (cut === undefined || cut >= body.length) response.end(body);
    else response.write(body.subarray(0, cut), () => cutWhenArrived(response, file, Math.max(0, from) + cut));
  }
}

function cutWhenArrived(response: ServerResponse, file: ServedFile, position: number): void {
  const timer = setInterval(() => {
    if ((file.arrived?.() ?? position) < position && !response.closed) return;
    clearInterval(timer);
    file.on_cut?.();
    response.destroy();
  }, 2);
}

export function sha256(content: Buffer): string {
  return createHash('sha256').update(content).digest('hex');
}

function gitObjectId(content: Buffer): string {
  return createHash('sha1').update(`blob ${content.length}\0`).update(content).digest('hex');
}
