import { randomBytes } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { z } from 'zod';
import type { Cluster } from '../cluster/cluster.ts';

export const testClient = { id: 'hpcserve-test', secret: 'not-a-secret-of-anybody' } as const;
export const testSystem = 'testcluster';

const jobRequest = z.strictObject({
  job: z
    .strictObject({
      name: z.string().optional(),
      account: z.string().optional(),
      reservation: z.string().optional(),
      partition: z.string().optional(),
      workingDirectory: z.string(),
      standardInput: z.string().optional(),
      standardOutput: z.string().optional(),
      standardError: z.string().optional(),
      env: z.record(z.string(), z.string()).optional(),
      constraints: z.string().optional(),
      script: z.string().optional(),
      scriptPath: z.string().optional(),
    })
    .refine((job) => (job.script === undefined) !== (job.scriptPath === undefined)),
});

/** Between fields of squeue: no name of a job has it, while some have bars. */
const separator = '\x1f';

/** What the next request of a kind meets, once each. */
export interface Mishap {
  method: string;
  path: RegExp;
  /** lost: done, but the answer does not arrive. */
  how: { status: number; headers?: Record<string, string> } | 'lost';
}

/**
 * FirecREST v2's documented endpoints, as far as hpcserve uses them, on a real Slurm cluster: what they do is done by
 * the cluster's own commands, run as its ordinary user, and their answers have the documented form. Requests that the
 * API does not document, or that come without a valid token, are refused. Written from its OpenAPI description; no part
 * of FirecREST itself is here.
 */
export class FirecrestServer {
  readonly url: string;
  readonly token_url: string;
  readonly #server: Server;
  readonly #cluster: Cluster;
  readonly #tokens = new Map<string, number>();
  readonly #mishaps: Mishap[] = [];
  /** `METHOD path?query` of each request, in order; never its token or body. */
  readonly requests: string[] = [];
  tokens_given = 0;
  token_lifetime_s = 300;

  static async start(cluster: Cluster): Promise<FirecrestServer> {
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    return new FirecrestServer(server, cluster);
  }

  private constructor(server: Server, cluster: Cluster) {
    const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    this.url = `${origin}/hpc/firecrest/v2`;
    this.token_url = `${origin}/auth/token`;
    this.#server = server;
    this.#cluster = cluster;
    server.on('request', (request, response) => {
      this.#handle(request, response).catch((error: unknown) => {
        response.writeHead(500, { 'content-type': 'application/json' });
        response.end(JSON.stringify({ errorType: 'error', message: String(error) }));
      });
    });
  }

  next(mishap: Mishap): void {
    this.#mishaps.push(mishap);
  }

  /** Tokens that were given are worth nothing from now on. */
  revokeTokens(): void {
    this.#tokens.clear();
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? '/', this.url);
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const body = Buffer.concat(chunks);
    if (url.pathname === '/auth/token') {
      const [status, content] = this.#giveToken(request, body);
      return answer(response, status, content);
    }
    const base = new URL(this.url).pathname;
    const path = url.pathname.slice(base.length);
    this.requests.push(`${request.method} ${path}${url.search}`);
    const at = this.#mishaps.findIndex((each) => each.method === request.method && each.path.test(path));
    const mishap = at < 0 ? undefined : this.#mishaps.splice(at, 1)[0]!.how;
    if (mishap !== undefined && mishap !== 'lost') {
      response.writeHead(mishap.status, mishap.headers);
      return void response.end('<html>a proxy said this</html>');
    }
    const token = /^Bearer (\S+)$/.exec(request.headers.authorization ?? '')?.[1];
    const until_ms = this.#tokens.get(token ?? '');
    if (until_ms === undefined || performance.now() > until_ms)
      return answer(response, 401, refusal('Invalid or missing access token'));
    const [status, content] = await this.#route(request, path, url.searchParams, body);
    if (mishap === 'lost') return void response.socket?.destroy();
    if (content instanceof Buffer) {
      response.writeHead(status, { 'content-type': 'application/octet-stream' });
      return void response.end(content);
    }
    answer(response, status, content);
  }

  #giveToken(request: IncomingMessage, body: Buffer): [number, object] {
    const form = new URLSearchParams(body.toString());
    const type = request.headers['content-type'] ?? '';
    if (request.method !== 'POST' || !type.startsWith('application/x-www-form-urlencoded'))
      return [400, { error: 'invalid_request' }];
    if (form.get('grant_type') !== 'client_credentials') return [400, { error: 'unsupported_grant_type' }];
    if (form.get('client_id') !== testClient.id || form.get('client_secret') !== testClient.secret)
      return [401, { error: 'invalid_client', error_description: body.toString() }];
    const access_token = randomBytes(24).toString('base64url');
    this.#tokens.set(access_token, performance.now() + this.token_lifetime_s * 1000);
    this.tokens_given++;
    return [200, { access_token, token_type: 'Bearer', expires_in: this.token_lifetime_s }];
  }

  async #route(
    request: IncomingMessage,
    path: string,
    query: URLSearchParams,
    body: Buffer,
  ): Promise<[number, unknown]> {
    const { method } = request;
    if (method === 'GET' && path === '/status/systems') return [200, { systems: [await this.#system()] }];
    const [, group, system, rest = ''] = /^\/(status|compute|filesystem)\/([^/]+)\/(.+)$/.exec(path) ?? [];
    if (group === undefined || system !== testSystem) return [404, refusal('Not Found')];
    const route = `${method} ${group} ${rest.replace(/^jobs\/[A-Za-z0-9]+$/, 'jobs/ID')}`;
    const id = rest.split('/')[1] ?? '';
    switch (route) {
      case 'POST compute jobs':
        if (request.headers['content-type'] !== 'application/json') return [400, refusal('not JSON')];
        return this.#submit(JSON.parse(body.toString()));
      case 'GET compute jobs':
        if (!['1h', '8h', '24h', '3d', '7d'].includes(query.get('time_window') ?? '24h'))
          return [400, refusal('time_window')];
        return [200, { jobs: await this.#jobs([]) }];
      case 'GET compute jobs/ID': {
        const jobs = await this.#jobs([`--jobs=${id}`]);
        return jobs.length > 0 ? [200, { jobs }] : [404, refusal('Job not found.')];
      }
      case 'DELETE compute jobs/ID': {
        const { code, stderr } = await this.#run(['scancel', id]);
        return code === 0 && stderr === '' ? [204, undefined] : slurmError(stderr);
      }
      case 'GET status nodes':
        return [200, { nodes: await this.#nodes() }];
      case 'GET status partitions':
        return [200, { partitions: await this.#partitions() }];
      case 'GET status reservations':
        return [200, { reservations: await this.#reservations() }];
      case 'GET status userinfo':
        return [200, await this.#user()];
      case 'POST filesystem ops/upload':
        return this.#upload(request, query.get('path') ?? '', body);
      case 'GET filesystem ops/download': {
        const { code, stdout, stderr } = await this.#run(['base64', '--wrap=0', query.get('path') ?? '']);
        return code === 0 ? [200, Buffer.from(stdout, 'base64')] : [404, refusal(stderr)];
      }
      default:
        return [405, refusal('Method Not Allowed')];
    }
  }

  async #submit(json: unknown): Promise<[number, unknown]> {
    const read = jobRequest.safeParse(json);
    if (!read.success) return [400, { ...refusal(read.error.message), errorType: 'validation' }];
    const { job } = read.data;
    const environment = Object.entries(job.env ?? { F7T_version: 'v2.0.0' });
    const argv = [
      'sbatch',
      `--export=ALL,${environment.map(([name, value]) => `${name}=${value}`).join(',')}`,
      `--chdir=${job.workingDirectory}`,
    ];
    const options = {
      partition: job.partition,
      reservation: job.reservation,
      account: job.account,
      'job-name': job.name,
      output: job.standardOutput,
      error: job.standardError,
      input: job.standardInput,
      constraint: job.constraints,
    };
    for (const [name, value] of Object.entries(options))
      if (value !== undefined) argv.push(`--${name}=${value}`);
    if (job.scriptPath !== undefined) argv.push('--', job.scriptPath);
    const { code, stdout, stderr } = await this.#run(argv, job.script);
    const jobId = /Submitted batch job (\d+)/.exec(stdout)?.[1];
    if (code !== 0) {
      const words = `Unexpected Slurm command response. exit_status:${code} std_err:${stderr}`;
      return [/(QOS|Assoc)(Max|Min)\w*Limit/i.test(stderr) ? 403 : 500, refusal(words)];
    }
    return [201, { jobId }];
  }

  /** What the controller knows. FirecREST asks sacct too; the queue of the test cluster remembers long enough. */
  async #jobs(selection: string[]): Promise<object[]> {
    const fields =
      'JobID,Name,State,Reason,exit_code,StartTime,EndTime,Account,NodeList,Partition,UserName,NumNodes,WorkDir';
    const squeue = await this.#run([
      ...['env', 'TZ=UTC', 'SLURM_TIME_FORMAT=%s', 'squeue', '--noheader', '--states=all'],
      `--Format=${fields
        .split(',')
        .map((name) => `${name}:${separator}`)
        .join(',')}`,
      ...(selection.length > 0 ? selection : [`--user=${this.#cluster.user.name}`]),
    ]);
    if (squeue.code !== 0 && !/invalid job id/i.test(squeue.stderr)) throw new Error(squeue.stderr);
    const number = (text: string): number | null => (/^\d+$/.test(text) ? Number(text) : null);
    return squeue.stdout
      .split('\n')
      .filter((line) => line.includes(separator))
      .map((line) => {
        const [id, name, state, reason, exit, start, end, account, nodes, partition, user, count, folder] =
          line.split(separator);
        return {
          jobId: id,
          name,
          status: { state, stateReason: reason, exitCode: number(exit ?? ''), interruptSignal: null },
          tasks: null,
          time: { elapsed: null, start: number(start!), end: number(end!), suspended: null, limit: null },
          account,
          allocationNodes: Number(count),
          cluster: testSystem,
          group: null,
          nodes,
          partition,
          killRequestUser: null,
          user,
          workingDirectory: folder,
          priority: null,
        };
      });
  }

  async #nodes(): Promise<object[]> {
    const { stdout } = await this.#ok(['sinfo', '-a', '-N', '--noheader', '--format=%N|%c|%f|%T|%R|%m|%C']);
    const nodes = new Map<string, { partitions: string[] }>();
    for (const line of stdout.trim().split('\n')) {
      const [name, cpus, features, state, partition, memory, counts] = line.split('|');
      const known = nodes.get(name!);
      if (known) known.partitions.push(partition!);
      else
        nodes.set(name!, {
          name,
          cpus: Number(cpus),
          features,
          state: [state!.toUpperCase()],
          partitions: [partition!],
          allocMemory: Number(memory),
          allocCpus: Number(counts!.split('/')[0]),
          idleCpus: Number(counts!.split('/')[1]),
        } as { partitions: string[] });
    }
    return [...nodes.values()];
  }

  async #partitions(): Promise<object[]> {
    const { stdout } = await this.#ok(['scontrol', '--oneliner', 'show', 'partition']);
    return stdout
      .trim()
      .split('\n')
      .map((line) => ({
        name: /PartitionName=(\S+)/.exec(line)![1],
        cpus: Number(/TotalCPUs=(\d+)/.exec(line)![1]),
        totalNodes: Number(/TotalNodes=(\d+)/.exec(line)![1]),
        partition: /State=(\S+)/.exec(line)![1],
      }));
  }

  async #reservations(): Promise<object[]> {
    const { stdout } = await this.#ok([
      ...['env', 'TZ=UTC', 'SLURM_TIME_FORMAT=%s', 'scontrol', '--oneliner', 'show', 'reservation'],
    ]);
    return stdout
      .split('\n')
      .filter((line) => line.startsWith('ReservationName='))
      .map((line) => ({
        name: /ReservationName=(\S+)/.exec(line)![1],
        nodeList: /Nodes=(\S+)/.exec(line)![1],
        startTime: Number(/StartTime=(\d+)/.exec(line)![1]),
        endTime: Number(/EndTime=(\d+)/.exec(line)![1]),
        features: '(null)',
        state: 'active',
      }));
  }

  async #user(): Promise<object> {
    const { stdout } = await this.#run([
      ...['sacctmgr', '--noheader', '--parsable2', 'show', 'user', this.#cluster.user.name, 'withassoc'],
      'format=DefaultAccount,Account',
    ]);
    const lines = stdout.trim().split('\n').filter(Boolean);
    return {
      user: { id: String(this.#cluster.user.uid), name: this.#cluster.user.name },
      accounts: lines.map((line) => {
        const [standard, name] = line.split('|');
        return { name, default: name === standard };
      }),
    };
  }

  async #system(): Promise<object> {
    const { stdout } = await this.#ok(['sinfo', '--version']);
    return {
      name: testSystem,
      scheduler: { type: 'slurm', version: stdout.trim().replace(/^slurm(-wlm)? /, '') },
    };
  }

  async #upload(request: IncomingMessage, folder: string, body: Buffer): Promise<[number, unknown]> {
    const type = request.headers['content-type'] ?? '';
    if (!type.startsWith('multipart/form-data')) return [400, refusal('file: field required')];
    const form = await new Response(body, { headers: { 'content-type': type } }).formData();
    const file = form.get('file');
    if (!(file instanceof File)) return [400, refusal('file: field required')];
    const content = Buffer.from(await file.arrayBuffer());
    const { code, stderr } = await this.#run(['tee', '--', `${folder}/${file.name}`], content.toString());
    return code === 0 ? [204, undefined] : [500, refusal(stderr)];
  }

  async #ok(argv: string[]): Promise<{ stdout: string }> {
    const result = await this.#run(argv);
    if (result.code !== 0) throw new Error(result.stderr);
    return result;
  }

  #run(argv: string[], input?: string): Promise<{ stdout: string; stderr: string; code: number }> {
    return this.#cluster.runAs('user', argv, input === undefined ? {} : { input });
  }
}

function refusal(message: string): object {
  return { errorType: 'error', message, causedBy: null, data: null, user: null };
}

function slurmError(stderr: string): [number, unknown] {
  return [500, refusal(`Unexpected Slurm command response. exit_status:1 std_err:${stderr}`)];
}

function answer(response: ServerResponse, status: number, content: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(content === undefined ? undefined : JSON.stringify(content));
}
