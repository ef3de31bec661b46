/** Programs that measure and judge servers, at a real vLLM behind a gateway and a node agent. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe } from 'vitest';
import { Site } from '../../agent/support.ts';
import { clientTools } from '../../engines/environments.ts';
import { realVllm, vllm_ready_ms } from '../../engines/vllm.ts';
import { gatewayOf, type SiteGateway } from '../../gateway/with-agents.ts';
import { testTools } from './suite.ts';
import { writeTasks } from './tasks.ts';

const { found: tools, lacking: noTools } = clientTools();
const { vllm, lacking: noVllm } = realVllm();
const lacking = noVllm || noTools;
const model = 'tiny';

describe.skipIf(lacking !== '')(`at vLLM${lacking}`, () => {
  let site: Site;
  let gateway: SiteGateway;
  let tokenizer: string;
  let tasks: string;

  beforeAll(async () => {
    site = await Site.open();
    tokenizer = vllm!.model(join(site.folder, 'tiny'));
    tasks = writeTasks(join(site.folder, 'tasks'));
    mkdirSync(join(site.folder, 'scratch'));
    await site.start([vllm!.unit(model, tokenizer)], vllm!.launch);
    gateway = await gatewayOf(site);
    await gateway.untilServing(model, 1, vllm_ready_ms);
  }, vllm_ready_ms + 60_000);
  afterAll(async () => {
    await gateway?.[Symbol.asyncDispose]();
    await site?.[Symbol.asyncDispose]();
  }, 60_000);

  testTools(tools!, () => ({
    url: gateway.url,
    key: gateway.key,
    model,
    tokenizer,
    scratch: join(site.folder, 'scratch'),
    tasks,
  }));
});
