/** Programs that measure and judge servers, at the native engine behind a gateway. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe } from 'vitest';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import { Site, unitOf } from '../../agent/support.ts';
import { clientTools } from '../../engines/environments.ts';
import { gatewayOf, type SiteGateway } from '../../gateway/with-agents.ts';
import { writeQwenTokenizer } from './hf-tokenizer.ts';
import { testTools } from './suite.ts';
import { writeTasks } from './tasks.ts';

const { found: tools, lacking } = clientTools();
const model = 'tiny';
const seed = 1;

describe.skipIf(tools === undefined)(`at the native engine${lacking}`, () => {
  let site: Site;
  let gateway: SiteGateway;
  let tasks: string;

  beforeAll(async () => {
    site = await Site.open();
    const path = join(site.folder, 'tiny.gguf');
    const shape = synthPresets['tiny-qwen3']!;
    await synthesize({ path, shape, quantization: 'F16', seed });
    writeQwenTokenizer(join(site.folder, 'tokenizer'), shape, seed);
    tasks = writeTasks(join(site.folder, 'tasks'));
    mkdirSync(join(site.folder, 'scratch'));
    await site.start([
      // So that the same text has the same numbers, whatever stands beside it in a batch.
      unitOf(
        { name: model, max_sequences: 8, batch_invariant: true },
        { engine: 'native', model_path: path, context_tokens: 1024, kv_tokens: 8192 },
      ),
    ]);
    gateway = await gatewayOf(site);
    await gateway.untilServing(model, 1, 60_000);
  });
  afterAll(async () => {
    await gateway?.[Symbol.asyncDispose]();
    await site?.[Symbol.asyncDispose]();
  });

  testTools(tools!, () => ({
    url: gateway.url,
    key: gateway.key,
    model,
    tokenizer: join(site.folder, 'tokenizer'),
    scratch: join(site.folder, 'scratch'),
    tasks,
  }));
});
