/** What jobs had beside what was computed in them, as a gateway tells its operator. */
import { dirname } from 'node:path';
import { expect, it } from 'vitest';
import { appendJobRecords } from '../../ledger/jobs/job-records.ts';
import { jobRecordSchema } from '../../spec/job-record.ts';
import { jobUsageAnswerSchema } from '../../spec/job-usage.ts';
import { jobsFolderBeside } from '../../spec/state-layout.ts';
import { chatAnswer, json, shareStage } from './support.ts';

const shared = shareStage();

it('its ledger is joined with the records of jobs, for the operator alone', async () => {
  const { config, admin, post, key, url } = shared.stage;
  expect(dirname(jobsFolderBeside(config.gateway_folder))).toBe(dirname(config.gateway_folder));
  await shared.session(json(chatAnswer));
  expect((await post('/v1/chat/completions', { model: 'tiny', messages: [] })).status).toBe(200);
  const record = jobRecordSchema.parse({
    format: 1,
    site: 'test',
    job_id: '4711',
    deployment: 'demo',
    account: 'chat',
    devices: 2,
    state: 'RUNNING',
    start_ms: Date.now() - 3_600_000,
  });
  appendJobRecords(jobsFolderBeside(config.gateway_folder), 'demo', [record]);
  const answer = await admin('/hpcserve/v1/usage/jobs');
  const { jobs } = jobUsageAnswerSchema.parse(await answer.json());
  expect(jobs).toMatchObject([
    { group: { job: '4711' }, account: 'chat', state: 'RUNNING', requests: 1, completion_tokens: 7 },
  ]);
  expect(jobs[0]!.allocated_device_s).toBeGreaterThanOrEqual(7200);
  const csv = await admin('/hpcserve/v1/usage/jobs?group_by=deployment,account&format=csv');
  expect(await csv.text()).toMatch(/^deployment,account,jobs,[\s\S]*\ndemo,chat,1,0,/);
  const asUser = await fetch(`${url}/hpcserve/v1/usage/jobs`, {
    headers: { authorization: `Bearer ${key}` },
  });
  expect(asUser.headers.get('x-hpcserve-error')).toBe('E_REQUEST_ADMIN');
  for (const query of ['group_by=user', 'since=yesterday', 'until=2026-02-31', 'format=xml', 'other=1'])
    expect([query, (await admin(`/hpcserve/v1/usage/jobs?${query}`)).status]).toEqual([query, 400]);
});
