import { Agent, request as requestHttp } from 'node:http';
import { text as readAll } from 'node:stream/consumers';
import { type KvPeerList, kvPeerListSchema, kvPeerPath } from '../../transfer/agent-paths.ts';
import { askKvPeer, type KvPost } from '../../transfer/control-http.ts';
import type { KvPeer } from '../../transfer/kv-source.ts';
import { type KvRoom, roomSchema } from '../../transfer/messages.ts';

/** The agent answers from memory. */
const list_ms = 2000;

export type ListedPeer = KvPeerList['peers'][number];

/** The way of a device worker to others, by its agent. */
export class AgentPeers {
  readonly #socket: string;
  readonly #own_session: string;
  readonly #agent = new Agent({ keepAlive: true });

  /** @param socket of the agent: see `KvPeers` */
  constructor(socket: string, own_session: string) {
    this.#socket = socket;
    this.#own_session = own_session;
  }

  /** Workers that serve one of the models, but not this one. @throws Error: the agent does not answer */
  async list(models: ReadonlySet<string>): Promise<ListedPeer[]> {
    return (await this.#all()).filter(
      ({ session_id, models: served }) =>
        session_id !== this.#own_session && served.some((name) => models.has(name)),
    );
  }

  /** The worker of a session; undefined where the agent does not know it. @throws Error: the agent does not answer */
  async find(session_id: string): Promise<ListedPeer | undefined> {
    return (await this.#all()).find((peer) => peer.session_id === session_id);
  }

  /** All that there are now. @throws Error: the agent does not answer */
  async sessions(): Promise<Set<string>> {
    return new Set((await this.#all()).map(({ session_id }) => session_id));
  }

  /** @throws HpcserveError E_KV_* */
  async roomAt({ session_id }: ListedPeer, model: string, limit_ms: number): Promise<KvRoom> {
    return roomSchema.parse(await askKvPeer(this.#postTo(session_id), { kind: 'room', model }, limit_ms));
  }

  /** As transfers know it. */
  peer({ session_id, host, same_node }: ListedPeer): KvPeer {
    const post = this.#postTo(session_id);
    return {
      session_id,
      host,
      same_node,
      ask: (message, limit_ms) => askKvPeer(post, message, limit_ms),
    };
  }

  async #all(): Promise<ListedPeer[]> {
    const { status, body } = await this.#ask('GET', kvPeerPath, '', AbortSignal.timeout(list_ms));
    const text = await readAll(body);
    if (status !== 200) throw new Error(`the agent answered ${status}: ${text.slice(0, 200)}`);
    return kvPeerListSchema.parse(JSON.parse(text)).peers;
  }

  close(): void {
    this.#agent.destroy();
  }

  #postTo(session_id: string): KvPost {
    return (body, signal) => this.#ask('POST', `${kvPeerPath}/${session_id}`, body, signal);
  }

  #ask(method: string, path: string, body: string, signal: AbortSignal): ReturnType<KvPost> {
    const content = Buffer.from(body);
    const headers = {
      host: 'agent',
      'content-type': 'application/json',
      'content-length': content.length,
    };
    const options = { socketPath: this.#socket, agent: this.#agent, method, path, headers, signal };
    return new Promise((resolve, reject) => {
      const request = requestHttp(options, (answer) =>
        resolve({ status: answer.statusCode ?? 502, body: answer }),
      );
      request.once('error', reject);
      request.end(content);
    });
  }
}
