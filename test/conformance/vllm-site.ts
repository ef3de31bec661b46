import { join } from 'node:path';
import { Site } from '../agent/support.ts';
import { type RealVllm, vllm_ready_ms } from '../engines/vllm.ts';
import { gatewayOf, type SiteGateway } from '../gateway/with-agents.ts';

export const vllm_model = 'tiny';
/** Until it serves, ms, and what is done around it. */
export const vllm_start_ms = vllm_ready_ms + 60_000;
const parsers = { tools: ['hermes'], reasoning: [] };

/** A site whose one replica is a real vLLM of a small model, and a gateway before it. */
export class VllmSite implements AsyncDisposable {
  readonly site: Site;
  /** Closed with it. */
  readonly gateway: SiteGateway;
  /** A Hugging Face folder with that of the model. */
  readonly tokenizer: string;

  private constructor(site: Site, gateway: SiteGateway, tokenizer: string) {
    this.site = site;
    this.gateway = gateway;
    this.tokenizer = tokenizer;
  }

  /** Returns when it serves. */
  static async open(vllm: RealVllm): Promise<VllmSite> {
    const site = await Site.open();
    const tokenizer = vllm.model(join(site.folder, vllm_model), true);
    await site.start([vllm.unit(vllm_model, tokenizer, {}, { parsers })], vllm.launch);
    const gateway = await gatewayOf(site);
    await gateway.untilServing(vllm_model, 1, vllm_ready_ms);
    return new VllmSite(site, gateway, tokenizer);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.gateway[Symbol.asyncDispose]();
    await this.site[Symbol.asyncDispose]();
  }
}
