/** Clients of others for JavaScript, at the native engine behind a gateway. */
import { afterAll, beforeAll, describe } from 'vitest';
import { clientSdks } from '../../engines/environments.ts';
import { openStage, type Stage } from '../support.ts';
import { testSdks } from './sdks.ts';

const { found: sdks, lacking } = clientSdks();

describe.skipIf(sdks === undefined)(`at the native engine${lacking}`, () => {
  let stage: Stage;
  beforeAll(async () => {
    stage = await openStage();
  }, 60_000);
  afterAll(() => stage?.[Symbol.asyncDispose]());

  testSdks(sdks!, 'native', () => ({
    url: stage.url,
    key: stage.key,
    chat_model: 'tiny',
    tools_model: 'tools',
  }));
});
