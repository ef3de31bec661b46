/** Clients of others at a real vLLM behind a gateway and a node agent. All ask one: it takes a minute to start. */
import { afterAll, beforeAll, describe } from 'vitest';
import { clientSdks } from '../engines/environments.ts';
import { realVllm } from '../engines/vllm.ts';
import { testSdks } from './sdks/sdks.ts';
import { VllmSite, vllm_model, vllm_start_ms } from './vllm-site.ts';

const { vllm, lacking } = realVllm();
const { found: sdks, lacking: noSdks } = clientSdks();

describe.skipIf(vllm === undefined || sdks === undefined)(`at vLLM${lacking}${noSdks}`, () => {
  let served: VllmSite;

  beforeAll(async () => {
    served = await VllmSite.open(vllm!);
  }, vllm_start_ms);
  afterAll(() => served?.[Symbol.asyncDispose](), 60_000);

  testSdks(sdks!, 'vllm', () => ({
    url: served.gateway.url,
    key: served.gateway.key,
    chat_model: vllm_model,
    tools_model: vllm_model,
  }));
});
