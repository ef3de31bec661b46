/** A gateway before the sessions of a provider that does not let it use or operate them. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { HpcserveError } from '../../spec/errors/error.ts';
import { fixtureUnit, Site } from '../agent/support.ts';
import { providerKeyFileOf } from '../mesh/providers.ts';
import { chatAnswer, json, startStage, until } from './support.ts';
import { gatewayOf } from './with-agents.ts';

const chat = { model: 'm', messages: [{ role: 'user' as const, content: 'hi' }] };

it('says why it does not reach a session that it may not use, and asks its own as ever', async () => {
  await using site = await Site.open();
  await site.start([fixtureUnit('m')], { users: [] });
  await site.serving('m');
  const elsewhere = join(site.folder, 'elsewhere');
  mkdirSync(elsewhere);
  const provider = 'carol@local';
  await using other = await gatewayOf(
    site,
    {},
    {
      provider,
      provider_key_file: providerKeyFileOf(elsewhere, provider),
      gateway_folder: join(elsewhere, 'gateway'),
    },
  );
  const said = (): string[] => other.logged.filter((line) => line.includes('may not use this session'));
  await until(() => said().length > 0, 'the refusal to be logged');
  expect(said()[0]).toContain('carol@local');
  await expect(other.client().chat.completions.create(chat)).rejects.toMatchObject({ status: 503 });
  expect(await other.serving()).toEqual([]);
  // Not again and again, and it is the same for the provider's own gateway.
  await using own = await gatewayOf(site);
  await own.untilServing('m', 1);
  expect(await own.client().chat.completions.create(chat)).toBeDefined();
  expect(said()).toHaveLength(1);
});

it('leaves devices out of moves that it may not operate, and says so once', async () => {
  const stage = await startStage({ defragment_ms: 50 });
  try {
    const refusal = new HpcserveError('E_AGENT_ACCESS', { what: 'the gateway may not operate this session' });
    const asked: string[] = [];
    for (const node of ['one', 'two']) {
      const session = await stage.session(json(chatAnswer), { node });
      session.shares = (request, response) => {
        asked.push(node);
        const { code, message, http_status } = refusal;
        const error = { code, message, type: 'invalid_request_error', param: null };
        return json({ error }, http_status)(request, response);
      };
      session.load = { running: 1 };
      session.beat();
    }
    const said = (): string[] => stage.logged.filter((line) => line.includes('takes no part in moves'));
    await until(() => said().length === 2, 'both refusals to be logged');
    expect(said()[0]).toContain('may not operate this session');
    // It looks twenty times a second, and asks neither again.
    await new Promise((resolve) => setTimeout(resolve, 500));
    expect(asked.sort()).toEqual(['one', 'two']);
    expect((await stage.post('/v1/chat/completions', { ...chat, model: 'tiny' })).status).toBe(200);
  } finally {
    await stage.close();
  }
});
