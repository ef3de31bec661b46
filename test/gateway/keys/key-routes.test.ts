/** Keys and usage over HTTP: what an operator, a provider and a user may see and do. */
import { join } from 'node:path';
import Database from 'better-sqlite3';
import { describe, expect, it } from 'vitest';
import type { ApiKey } from '../../../ledger/index.ts';
import { auditAnswerSchema } from '../../../spec/audit.ts';
import type { KeySettings } from '../../../spec/key-settings.ts';
import { gatewayFiles } from '../../../spec/state-layout.ts';
import { usageAnswerSchema } from '../../../spec/usage.ts';
import { chatAnswer, json, shareStage } from '../support.ts';

const shared = shareStage();
const chat = { model: 'tiny', messages: [{ role: 'user', content: 'hi' }] };

type Made = ApiKey & { key: string };

/** Asks as somebody. */
async function ask(key: string, path: string, method = 'GET', body?: unknown): Promise<Response> {
  const headers: Record<string, string> = { authorization: `Bearer ${key}` };
  if (body !== undefined) headers['content-type'] = 'application/json';
  return fetch(`${shared.stage.url}${path}`, {
    method,
    headers,
    body: body === undefined ? null : JSON.stringify(body),
  });
}

async function made(settings: KeySettings, name = 'another'): Promise<Made> {
  const answer = await shared.stage.admin('/hpcserve/v1/keys', { method: 'POST', body: { name, settings } });
  expect(answer.status).toBe(201);
  return (await answer.json()) as Made;
}

async function derived(from: string, settings: KeySettings = {}, name = 'derived'): Promise<Response> {
  return ask(from, '/hpcserve/v1/keys', 'POST', { name, settings });
}

async function usageOf(key: string, query: string) {
  const answer = await ask(key, `/hpcserve/v1/usage?${query}`);
  expect(answer.status, await answer.clone().text()).toBe(200);
  return usageAnswerSchema.parse(await answer.json()).usage;
}

const codeOf = async (answer: Response): Promise<string> =>
  ((await answer.json()) as { error: { code: string } }).error.code;

describe('a user', () => {
  it('sees what her keys used, and nothing of others', async () => {
    await shared.session(json(chatAnswer), {
      metadata: { devices: [{ kind: 'gpu', model: 'A100-40GB', memory_bytes: 40e9, isa: [] }] },
    });
    const alice = await made({ user: 'alice' });
    const again = await made({ user: 'alice', project: 'thesis' });
    const bob = await made({ user: 'bob' });
    for (const { key } of [alice, again, bob])
      expect((await ask(key, '/v1/chat/completions', 'POST', chat)).status).toBe(200);
    const rows = await usageOf(alice.key, 'group_by=user,project,device');
    expect(rows.map(({ group, requests }) => [group.user, group.project, group.device, requests])).toEqual([
      ['alice', '-', 'A100-40GB', 1],
      ['alice', 'thesis', 'A100-40GB', 1],
    ]);
    const [sums] = rows;
    expect(sums).toMatchObject({
      prompt_tokens: 5,
      completion_tokens: 7,
      cached_tokens: 2,
      reasoning_tokens: 3,
    });
    expect(sums!.device_s).toBeGreaterThan(0);
    // 250 W by the catalog, for as long as it was busy.
    expect(sums!.energy_j / sums!.device_s).toBeCloseTo(sums!.energy_estimated_j / sums!.device_s, 9);
    expect(sums!.energy_j / sums!.device_s).toBeGreaterThan(100);
    // A filter narrows what one may see, and nothing else.
    expect(await usageOf(alice.key, 'group_by=user&user=bob')).toEqual([]);
    expect(await usageOf(alice.key, `group_by=user&project=thesis&user=alice&user=bob`)).toHaveLength(1);
    expect(await usageOf(shared.stage.gateway.admin_token, 'group_by=user&user=bob&user=alice')).toHaveLength(
      2,
    );
    expect((await ask(alice.key, '/hpcserve/v1/audit')).status).toBe(401);
  });

  it('derives keys that can do no more than hers, share her limits, and end with it', async () => {
    await shared.session(json(chatAnswer));
    const parent = await made({ models: ['tiny', 'small'], requests_per_minute: 3 });
    const child = (await (await derived(parent.key, { models: ['tiny', 'large'] })).json()) as Made;
    expect(child.parent_id).toBe(parent.id);
    for (const settings of [
      { requests_per_minute: 9 },
      { role: 'operator' },
      { user: 'root' },
      { budget: null },
    ] as object[]) {
      const refused = await ask(parent.key, '/hpcserve/v1/keys', 'POST', { name: 'x', settings });
      expect([400, 403]).toContain(refused.status);
    }
    const models = (await (await ask(child.key, '/v1/models')).json()) as { data: { id: string }[] };
    expect(models.data.map(({ id }) => id)).toEqual(['tiny']);
    expect(
      await codeOf(await ask(child.key, '/v1/chat/completions', 'POST', { ...chat, model: 'large' })),
    ).toBe('E_KEY_MODEL');
    expect((await ask(child.key, '/v1/chat/completions', 'POST', chat)).status).toBe(200);
    expect((await ask(parent.key, '/v1/chat/completions', 'POST', chat)).status).toBe(200);
    expect(await codeOf(await ask(child.key, '/v1/chat/completions', 'POST', chat))).toBe(
      'rate_limit_exceeded',
    );
    // Neither its own settings, nor keys of others, nor her own beyond what narrows.
    expect(
      await codeOf(await ask(child.key, `/hpcserve/v1/keys/${child.id}`, 'PATCH', { models: null })),
    ).toBe('E_KEY_SCOPE');
    expect(await codeOf(await ask(parent.key, `/hpcserve/v1/keys/${shared.stage.key_id}`, 'DELETE'))).toBe(
      'E_KEY_UNKNOWN',
    );
    expect(
      await codeOf(await ask(parent.key, `/hpcserve/v1/keys/${parent.id}`, 'PATCH', { models: null })),
    ).toBe('E_KEY_SCOPE');
    expect(
      (await ask(parent.key, `/hpcserve/v1/keys/${child.id}`, 'PATCH', { models: ['small'] })).status,
    ).toBe(200);
    const listed = (await (await ask(child.key, '/hpcserve/v1/keys')).json()) as { keys: ApiKey[] };
    expect(listed.keys.map(({ id }) => id).sort()).toEqual([parent.id, child.id].sort());
    await shared.stage.admin(`/hpcserve/v1/keys/${parent.id}/block`, { method: 'POST', body: {} });
    expect((await ask(child.key, '/v1/models')).status).toBe(401);
    await shared.stage.admin(`/hpcserve/v1/keys/${parent.id}/unblock`, { method: 'POST', body: {} });
    expect((await ask(child.key, '/v1/models')).status).toBe(200);
  });

  it('rotates no key that may do more than hers', async () => {
    const operator = await made({ user: 'eve', role: 'operator' });
    const plain = await made({ user: 'eve' });
    const child = (await (await derived(plain.key, { models: ['tiny'] })).json()) as Made;
    const rotated = async (key: string, { id }: Made): Promise<string> => {
      const answer = await ask(key, `/hpcserve/v1/keys/${id}/rotate`, 'POST', {});
      return answer.ok ? 'rotated' : await codeOf(answer);
    };
    expect(await rotated(child.key, plain)).toBe('E_KEY_SCOPE');
    expect(await rotated(plain.key, operator)).toBe('E_KEY_SCOPE');
    expect(await rotated(plain.key, child)).toBe('rotated');
    expect(await rotated(operator.key, plain)).toBe('rotated');
  });
});

describe('of two keys of one user', () => {
  it('the narrower gets at no secret and no settings of the wider one, or of what that made', async () => {
    const wide = await made({ user: 'frank' }, 'wide');
    const narrow = await made({ user: 'frank', models: ['tiny'], requests_per_minute: 5 }, 'narrow');
    const ofWide = (await (await derived(wide.key, { models: ['tiny'] })).json()) as Made;
    const ofNarrow = (await (await derived(narrow.key)).json()) as Made;
    const asked = async ({ key }: Made, method: string, path: string, body: object): Promise<string> => {
      const answer = await ask(key, `/hpcserve/v1/keys/${path}`, method, body);
      return answer.ok ? 'done' : codeOf(answer);
    };
    const change = { models: ['tiny', 'small'] };
    for (const { id } of [wide, ofWide]) {
      expect(await asked(narrow, 'POST', `${id}/rotate`, {})).toBe('E_KEY_SCOPE');
      expect(await asked(narrow, 'PATCH', id, change)).toBe('E_KEY_SCOPE');
    }
    const refused = await ask(narrow.key, `/hpcserve/v1/keys/${ofWide.id}/rotate`, 'POST', {});
    expect(await refused.text()).toContain('it has wider settings: requests_per_minute');
    for (const { key } of [wide, ofWide]) expect((await ask(key, '/v1/models')).status).toBe(200);
    for (const asking of [narrow, wide]) {
      expect(await asked(asking, 'PATCH', ofNarrow.id, change)).toBe('done');
      expect(await asked(asking, 'POST', `${ofNarrow.id}/rotate`, {})).toBe('done');
    }
    expect(await asked(wide, 'PATCH', ofWide.id, change)).toBe('done');
    expect(await asked(wide, 'POST', `${narrow.id}/rotate`, {})).toBe('done');
  });
});

describe('a key that was derived from another', () => {
  it('makes no key, which would be wider than itself and outlive it', async () => {
    const parent = await made({ user: 'alice', models: ['tiny', 'small'] });
    const expires_at_ms = Date.now() + 86_400_000;
    const child = (await (await derived(parent.key, { models: ['tiny'], expires_at_ms })).json()) as Made;
    for (const settings of [{}, { models: ['tiny'], expires_at_ms }])
      expect(await codeOf(await derived(child.key, settings))).toBe('E_KEY_SCOPE');
    const listed = (await (await ask(parent.key, '/hpcserve/v1/keys')).json()) as { keys: ApiKey[] };
    expect(listed.keys.filter(({ parent_id }) => parent_id === parent.id)).toHaveLength(1);
  });

  it('changes, blocks and revokes neither its parent nor those beside it; itself it may end', async () => {
    const parent = await made({ user: 'alice' });
    const another = await made({ user: 'alice' });
    const [child, sibling] = (await Promise.all(
      ['child', 'sibling'].map(async (name) =>
        (await derived(parent.key, { models: ['tiny'] }, name)).json(),
      ),
    )) as [Made, Made];
    const asked = async (key: string, method: string, path: string, body?: object): Promise<string> => {
      const answer = await ask(key, `/hpcserve/v1/keys/${path}`, method, body);
      return answer.ok ? 'done' : codeOf(answer);
    };
    for (const { id } of [parent, another, sibling]) {
      expect(await asked(child.key, 'PATCH', id, { models: null })).toBe('E_KEY_SCOPE');
      expect(await asked(child.key, 'POST', `${id}/block`, {})).toBe('E_KEY_SCOPE');
      expect(await asked(child.key, 'POST', `${id}/rotate`, {})).toBe('E_KEY_SCOPE');
      expect(await asked(child.key, 'DELETE', id)).toBe('E_KEY_SCOPE');
    }
    for (const { key } of [parent, another, sibling]) expect((await ask(key, '/v1/models')).status).toBe(200);
    // Of what a user does with keys that were derived from hers nothing is lost, with whichever of her keys.
    expect(await asked(another.key, 'PATCH', sibling.id, { models: null })).toBe('done');
    expect(await asked(parent.key, 'DELETE', sibling.id)).toBe('done');
    expect(await asked(child.key, 'POST', `${child.id}/block`, {})).toBe('done');
    expect((await ask(child.key, '/v1/models')).status).toBe(401);
  });
});

describe('keys', () => {
  it('get another secret; the old one is valid for the time that is given', async () => {
    const first = await made({});
    const rotated = (await (
      await ask(first.key, `/hpcserve/v1/keys/${first.id}/rotate`, 'POST', { grace_s: 60 })
    ).json()) as Made;
    expect(rotated.id).toBe(first.id);
    for (const key of [first.key, rotated.key]) expect((await ask(key, '/v1/models')).status).toBe(200);
    const last = (await (
      await ask(rotated.key, `/hpcserve/v1/keys/${first.id}/rotate`, 'POST', {})
    ).json()) as Made;
    for (const key of [first.key, rotated.key]) expect((await ask(key, '/v1/models')).status).toBe(401);
    expect((await ask(last.key, '/v1/models')).status).toBe(200);
  });

  it('expire, and are for the tiers that they name', async () => {
    await shared.session(json(chatAnswer), { metadata: { tier: 'scavenger' } });
    const expired = await made({ expires_at_ms: Date.now() - 1 });
    expect((await ask(expired.key, '/v1/models')).status).toBe(401);
    const stable = await made({ tiers: ['stable'] });
    expect((await ask(stable.key, '/v1/chat/completions', 'POST', chat)).status).not.toBe(200);
    const both = await made({ tiers: ['stable', 'scavenger'] });
    expect((await ask(both.key, '/v1/chat/completions', 'POST', chat)).status).toBe(200);
  });

  it('with the role operator see and do all; what was done with keys is noted, without secrets', async () => {
    const operator = await made({ role: 'operator' });
    const answer = await ask(operator.key, '/hpcserve/v1/keys', 'POST', {
      name: 'new',
      settings: { budget: { device_s: 5, window: 'day' } },
    });
    expect(answer.status).toBe(201);
    const key = (await answer.json()) as Made;
    await ask(operator.key, `/hpcserve/v1/keys/${key.id}`, 'DELETE');
    const text = await (await ask(operator.key, '/hpcserve/v1/audit?limit=3')).text();
    const { audit } = auditAnswerSchema.parse(JSON.parse(text));
    expect(audit.map(({ actor, action, subject }) => [actor, action, subject])).toEqual([
      [operator.id, 'revoke', key.id],
      [operator.id, 'create', key.id],
      ['operator', 'create', operator.id],
    ]);
    expect(text).not.toContain(key.key);
    expect(await (await ask(operator.key, '/hpcserve/v1/me')).json()).toMatchObject({
      role: 'operator',
      user: 'another',
    });
  });

  it('of a provider are told how much its devices computed, and not for whom', async () => {
    await shared.session(json(chatAnswer), { metadata: { provider: 'carol@test' } });
    const provides = [shared.stage.fingerprint('carol@test')];
    const provider = await made({ role: 'provider', provides });
    expect((await ask(shared.stage.key, '/v1/chat/completions', 'POST', chat)).status).toBe(200);
    expect(await usageOf(provider.key, 'group_by=provider,model')).toMatchObject([
      { group: { provider: 'carol@test', model: 'tiny' }, requests: 1 },
    ]);
    expect(await codeOf(await ask(provider.key, '/hpcserve/v1/usage?group_by=user'))).toBe('E_REQUEST_ADMIN');
    expect(await usageOf(provider.key, 'group_by=user&scope=own')).toEqual([]);
  });
});

describe('usage', () => {
  it('is a table for spreadsheets and reports, whatever names hold', async () => {
    await shared.session(json(chatAnswer));
    const { key } = await made({ user: '=cmd|\'a\'!A1,"x"' });
    await ask(key, '/v1/chat/completions', 'POST', chat);
    const csv = await (await ask(key, '/hpcserve/v1/usage?group_by=user&format=csv')).text();
    expect(csv.split('\n')[1]).toMatch(/^"'=cmd\|'a'!A1,""x""",1,0,/);
    const markdown = await (await ask(key, '/hpcserve/v1/usage?group_by=user&format=md')).text();
    expect(markdown.split('\n')[2]).toMatch(/^\| =cmd&#124;'a'!A1,"x" \| 1 \|/);
    for (const query of [
      'group_by=moon',
      'group_by=model,model',
      'group_by=',
      '',
      'group_by=model&format=xml',
      'group_by=model&since=yesterday',
      "group_by=model&model';DROP=1",
    ])
      expect([query, (await ask(key, `/hpcserve/v1/usage?${query}`)).status]).toEqual([query, 400]);
    expect(await usageOf(key, `group_by=model&model=${encodeURIComponent("x') OR 1=1 --")}`)).toEqual([]);
  });

  it('of requests that ask for it is counted, and nothing else is kept of them', async () => {
    await shared.session(json(chatAnswer));
    const quiet = await made({ usage: 'counts' });
    const answer = await ask(quiet.key, '/v1/chat/completions', 'POST', chat);
    const request_id = answer.headers.get('x-request-id')!;
    const other = await shared.stage.post('/v1/chat/completions', chat, { 'x-hpcserve-usage': 'counts' });
    expect(await usageOf(quiet.key, 'group_by=key')).toMatchObject([{ requests: 1, completion_tokens: 7 }]);
    const db = new Database(join(shared.stage.config.gateway_folder, gatewayFiles.ledger), {
      readonly: true,
    });
    const find = db.prepare('SELECT count(*) FROM requests WHERE request_id = ?').pluck();
    expect([request_id, other.headers.get('x-request-id')].map((id) => find.get(id))).toEqual([0, 0]);
    db.close();
  });
});
