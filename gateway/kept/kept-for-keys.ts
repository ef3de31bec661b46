import { mkdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { keptFilesDefault_d, keptKeyDefault_gb } from '../../spec/client-settings.ts';
import { systemMessage } from '../../spec/errors/system-error.ts';
import type { GatewayConfig } from '../../spec/state-layout.ts';
import type { GatewayLog } from '../log.ts';
import { SealedFolder } from './sealed-folder.ts';
import { siteSecret } from './site-secret.ts';

/** Between two looks for what is over its time. Lower: sooner gone; higher: fewer looks at folders. */
const sweep_ms = 10 * 60_000;

const second_ms = 1000;
const day_s = 86_400;

/** What gateways of a site keep for API keys beside their ledgers: nothing, where its operator does not want it. */
export class KeptForKeys {
  /** Answers of the responses API. */
  readonly responses: SealedFolder | undefined;
  /** Files of batches, and batches. */
  readonly files: SealedFolder | undefined;
  readonly batches: SealedFolder | undefined;
  readonly #log: GatewayLog;
  readonly #timer: NodeJS.Timeout;

  /** @throws E_GATEWAY_FOLDER */
  constructor(config: GatewayConfig, log: GatewayLog) {
    this.#log = log;
    const { gateway_folder, kept_key_bytes_max = 1e9 * keptKeyDefault_gb } = config;
    const { responses_kept_s = 0, files_kept_s = keptFilesDefault_d * day_s } = config;
    const site_folder = dirname(gateway_folder);
    const open = (name: string, kept_s: number): SealedFolder | undefined => {
      if (kept_s <= 0) return undefined;
      const folder = join(site_folder, name);
      mkdirSync(folder, { recursive: true, mode: 0o700 });
      const options = { kept_ms: kept_s * second_ms, owner_bytes_max: kept_key_bytes_max };
      return new SealedFolder(folder, siteSecret(join(site_folder, 'kept.key')), options);
    };
    this.responses = open('responses', responses_kept_s);
    this.files = open('files', files_kept_s);
    this.batches = open('batches', files_kept_s);
    this.#timer = setInterval(() => void this.#sweep(), sweep_ms).unref();
    void this.#sweep();
  }

  async close(): Promise<void> {
    clearInterval(this.#timer);
    await Promise.all(this.#all.map((folder) => folder.settled()));
  }

  get #all(): SealedFolder[] {
    return [this.responses, this.files, this.batches].filter((folder) => folder !== undefined);
  }

  async #sweep(): Promise<void> {
    for (const folder of this.#all)
      await folder.sweep().catch((error: Error) => {
        this.#log.warn({ reason: systemMessage(error) }, 'what is over its time cannot be removed');
      });
  }
}
