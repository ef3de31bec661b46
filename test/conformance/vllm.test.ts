/**
 * Clients of others, and programs that measure and judge servers, at a real vLLM behind a gateway and a node agent. All
 * of them ask one engine: it takes a minute to start.
 */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe } from 'vitest';
import { Site } from '../agent/support.ts';
import { clientSdks, clientTools } from '../engines/environments.ts';
import { realVllm, vllm_ready_ms } from '../engines/vllm.ts';
import { gatewayOf, type SiteGateway } from '../gateway/with-agents.ts';
import { testSdks } from './sdks/sdks.ts';
import { testTools } from './tools/suite.ts';
import { writeTasks } from './tools/tasks.ts';

const { vllm, lacking } = realVllm();
const { found: tools, lacking: noTools } = clientTools();
const { found: sdks, lacking: noSdks } = clientSdks();
const model = 'tiny';
const parsers = { tools: ['hermes'], reasoning: [] };

describe.skipIf(vllm === undefined)(`at vLLM${lacking}`, () => {
  let site: Site;
  let gateway: SiteGateway;
  let tokenizer: string;
  let tasks: string;

  beforeAll(async () => {
    site = await Site.open();
    tokenizer = vllm!.model(join(site.folder, 'tiny'), true);
    tasks = writeTasks(join(site.folder, 'tasks'));
    mkdirSync(join(site.folder, 'scratch'));
    await site.start([vllm!.unit(model, tokenizer, {}, { parsers })], vllm!.launch);
    gateway = await gatewayOf(site);
    await gateway.untilServing(model, 1, vllm_ready_ms);
  }, vllm_ready_ms + 60_000);
  afterAll(async () => {
    await gateway?.[Symbol.asyncDispose]();
    await site?.[Symbol.asyncDispose]();
  }, 60_000);

  describe.skipIf(sdks === undefined)(`clients${noSdks}`, () => {
    testSdks(sdks!, 'vllm', () => ({
      url: gateway.url,
      key: gateway.key,
      chat_model: model,
      tools_model: model,
    }));
  });

  describe.skipIf(tools === undefined)(`programs that measure${noTools}`, () => {
    testTools(tools!, () => ({
      url: gateway.url,
      key: gateway.key,
      model,
      tokenizer,
      scratch: join(site.folder, 'scratch'),
      tasks,
    }));
  });
});
