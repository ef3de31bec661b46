import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { every } from '../host/every.ts';
import { writeFileAtomicallyAsync } from '../host/whole-file.ts';
import type { LocalSession, Registry } from '../mesh/index.ts';
import { systemMessage } from '../spec/errors/system-error.ts';
import {
  type HeardStatements,
  type KeeperStatement,
  keeperStatementSchema,
  type ScalingPeer,
  type ScalingStatement,
  stated_peers_max,
} from '../spec/scaling-statement.ts';
import { provenProviderOf, type SessionRecord } from '../spec/session-record.ts';
import { gatewayFiles, keeperFiles } from '../spec/state-layout.ts';
import type { GatewayLog } from './log.ts';

/** A statement file beyond this is none of a keeper's. */
const file_bytes_max = 512 * 1024;

/**
 * Between the keeper of the site and those of other sites: what the keeper says of demand goes into the own session
 * record, and what gateways of the sites that it names say there comes back to it in a file. Nothing is decided here.
 */
export class ScalingExchange {
  readonly #path: string;
  readonly #keeper_path: string;
  readonly #registry: Registry;
  readonly #own: LocalSession;
  readonly #log: GatewayLog;
  readonly #stop: () => void;
  readonly #unsubscribe: () => void;
  #peers: readonly ScalingPeer[] = [];
  #written = '';
  #trouble = '';
  /** The keeper's file as it was last: its time and size, and what it said. */
  #read: { version: string; said: KeeperStatement } | undefined;
  #working: Promise<void> | undefined;

  /** @param poll_ms of the keeper's file. Higher: less to read on a shared filesystem; lower: others know sooner */
  constructor(
    folders: { gateway_folder: string; keeper_folder: string },
    registry: Registry,
    own: LocalSession,
    log: GatewayLog,
    poll_ms: number,
  ) {
    this.#path = join(folders.gateway_folder, gatewayFiles.sites_scaling);
    this.#keeper_path = join(folders.keeper_folder, keeperFiles.scaling);
    this.#registry = registry;
    this.#own = own;
    this.#log = log;
    this.#stop = every(poll_ms, () => this.#look());
    this.#unsubscribe = registry.onChange((changes) => {
      const isNews = changes.some(
        ({ before, after }) =>
          JSON.stringify(before?.metadata.scaling) !== JSON.stringify(after?.metadata.scaling),
      );
      if (isNews && this.#peers.length > 0) this.#look();
    });
    this.#look();
  }

  async close(): Promise<void> {
    this.#stop();
    this.#unsubscribe();
    await this.#working;
  }

  /** One look at a time; the timer comes round again. */
  #look(): void {
    this.#working ??= this.#exchange()
      .then(() => {
        this.#trouble = '';
      })
      .catch((error: Error) => {
        const reason = systemMessage(error);
        if (reason !== this.#trouble) this.#log.warn({ reason }, 'demand of several sites is not exchanged');
        this.#trouble = reason;
      })
      .finally(() => {
        this.#working = undefined;
      });
  }

  async #exchange(): Promise<void> {
    const said = await this.#readKeeper();
    this.#peers = said?.peers ?? [];
    const before = this.#own.record.metadata.scaling;
    if (before?.at !== said?.statement.at)
      await this.#own.update({ metadata: { scaling: said?.statement } as { scaling?: ScalingStatement } });
    if (said === undefined && this.#written === '') return;
    const heard = JSON.stringify(this.#heard());
    if (heard === this.#written) return;
    await writeFileAtomicallyAsync(this.#path, `${heard}\n`, { durability: 'content' });
    this.#written = heard;
  }

  #heard(): HeardStatements {
    const own = this.#own.record.metadata.scaling;
    const heard: HeardStatements = {
      format: 1,
      heard: this.#registry
        .snapshot()
        .flatMap((record) => this.#statementOf(record))
        .slice(0, stated_peers_max),
    };
    if (own) heard.own = own;
    return heard;
  }

  /** Of gateways that serve, in the name of a site and proved to be of who runs that. */
  #statementOf(record: SessionRecord): HeardStatements['heard'] {
    const { session_id, lifecycle, metadata } = record;
    const { role, site, scaling } = metadata;
    if (role !== 'gateway' || lifecycle !== 'SERVING' || scaling === undefined) return [];
    if (session_id === this.#own.id) return [];
    const provider_id = provenProviderOf(record, Date.now());
    const isPeer = this.#peers.some((peer) => peer.site === site && peer.provider_id === provider_id);
    return isPeer ? [{ site, statement: scaling }] : [];
  }

  /** Undefined where the keeper says nothing, or nothing that is understood: a file is written whole, always. */
  async #readKeeper(): Promise<KeeperStatement | undefined> {
    let text: string;
    let version: string;
    try {
      const { mtimeMs, size, ino } = await stat(this.#keeper_path);
      version = `${mtimeMs} ${size} ${ino}`;
      if (this.#read?.version === version) return this.#read.said;
      text = await readFile(this.#keeper_path, 'utf8');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
      throw error;
    }
    if (text.length > file_bytes_max) throw new Error(`${this.#keeper_path} has ${text.length} characters`);
    const parsed = keeperStatementSchema.safeParse(JSON.parse(text), { jitless: true });
    if (!parsed.success) throw new Error(`${this.#keeper_path}: ${parsed.error.issues[0]!.message}`);
    // A file that came in between is read by the next look.
    this.#read = { version, said: parsed.data };
    return parsed.data;
  }
}
