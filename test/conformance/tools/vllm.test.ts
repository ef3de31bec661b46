/** Programs that measure and judge servers, at a real vLLM behind a gateway and a node agent. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe } from 'vitest';
import { clientTools } from '../../engines/environments.ts';
import { realVllm } from '../../engines/vllm.ts';
import { VllmSite, vllm_model, vllm_start_ms } from '../vllm-site.ts';
import { testTools } from './suite.ts';
import { writeTasks } from './tasks.ts';

const { vllm, lacking } = realVllm();
const { found: tools, lacking: noTools } = clientTools();

describe.skipIf(vllm === undefined || tools === undefined)(`at vLLM${lacking}${noTools}`, () => {
  let served: VllmSite;
  let scratch: string;
  let tasks: string;

  beforeAll(async () => {
    served = await VllmSite.open(vllm!);
    scratch = join(served.site.folder, 'scratch');
    mkdirSync(scratch);
    tasks = writeTasks(join(served.site.folder, 'tasks'));
  }, vllm_start_ms);
  afterAll(() => served?.[Symbol.asyncDispose](), 60_000);

  testTools(tools!, () => ({
    url: served.gateway.url,
    key: served.gateway.key,
    model: vllm_model,
    tokenizer: served.tokenizer,
    scratch,
    tasks,
  }));
});
