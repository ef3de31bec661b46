/** The files of the dashboard as anybody gets them, and the jobs that it tells of. */
import { describe, expect, it } from 'vitest';
import type { DeploymentRow } from '../../spec/deployment-row.ts';
import { shareStage, writeDeployment } from './support.ts';

describe('the dashboard', () => {
  const shared = shareStage();
  const get = (path: string, headers: Record<string, string> = {}): Promise<Response> =>
    fetch(shared.stage.url + path, { headers, redirect: 'manual' });

  it.each(['/', '/dashboard'])('is where %s leads, also below a prefix', async (path) => {
    const answer = await get(path);
    expect(answer.status).toBe(302);
    expect(answer.headers.get('location')).toBe('dashboard/');
  });

  it('is shown to anybody, by a strict policy', async () => {
    const answer = await get('/dashboard/');
    expect(answer.status).toBe(200);
    expect(answer.headers.get('content-type')).toBe('text/html; charset=utf-8');
    const policy = answer.headers.get('content-security-policy')!;
    expect(policy).toContain("default-src 'none'");
    expect(policy).not.toMatch(/unsafe|\*/);
    expect(answer.headers.get('x-content-type-options')).toBe('nosniff');
    expect(answer.headers.get('cache-control')).toBe('no-cache');
    const page = await answer.text();
    expect(page).not.toMatch(/<script(?![^>]*src=)|<style| on\w+=/);
    const [, script] = /src="\.\/(assets\/[^"]+\.js)"/.exec(page)!;
    const code = await get(`/dashboard/${script}`, { 'accept-encoding': 'gzip' });
    expect(code.headers.get('content-encoding')).toBe('gzip');
    expect(code.headers.get('cache-control')).toContain('immutable');
    expect((await code.text()).length).toBeGreaterThan(50_000);
    const known = await get('/dashboard/', { 'if-none-match': answer.headers.get('etag')! });
    expect(known.status).toBe(304);
  });

  it('has nothing but its own files', async () => {
    for (const path of [
      '/dashboard/nothing.js',
      '/dashboard/..%2f..%2fpackage.json',
      '/dashboard/%2e%2e/%2e%2e/etc/passwd',
    ]) {
      const answer = await get(path);
      expect(answer.status, path).toBe(404);
      expect(await answer.text()).not.toContain('root:');
    }
  });

  it('tells a key of the jobs of its own models', async () => {
    const { stage } = shared;
    const waiting = {
      phase: 'submitted',
      job_id: '17',
      where: 'normal',
      submitting_since_ms: 5,
      last: {
        phase: 'pending',
        state: 'PENDING',
        pending: { reason: 'Resources', explanation: 'nodes are busy' },
        estimated_start_ms: 99,
      },
    };
    const ended = {
      phase: 'ended',
      job_id: '3',
      last: { phase: 'ended', state: 'FAILED', reason: 'out of memory' },
    };
    writeDeployment(stage.config, 'both', {
      spec: {
        models: [
          { name: 'one', aliases: ['uno'] },
          { name: 'two', aliases: [] },
        ],
      },
      launches: [...Array.from({ length: 7 }, () => ended), waiting],
    });
    writeDeployment(stage.config, 'other', { spec: { models: [{ name: 'two' }] }, launches: [waiting] });
    const jobsOf = async (key: string): Promise<DeploymentRow[]> => {
      const answer = await get('/hpcserve/v1/jobs', { authorization: `Bearer ${key}` });
      expect(answer.status).toBe(200);
      return ((await answer.json()) as { deployments: DeploymentRow[] }).deployments;
    };
    expect((await get('/hpcserve/v1/jobs')).status).toBe(401);
    const { key } = await stage.newKey({ models: ['uno'] });
    const [both, ...others] = await jobsOf(key);
    expect(others).toEqual([]);
    expect(both).toEqual({
      name: 'both',
      desired: 'serving',
      models: [{ name: 'one', aliases: ['uno'] }],
      jobs: [
        ...Array.from({ length: 5 }, () => ({
          phase: 'ended',
          superseded: false,
          job_id: '3',
          state: 'FAILED',
          end_reason: 'out of memory',
        })),
        {
          phase: 'submitted',
          superseded: false,
          job_id: '17',
          where: 'normal',
          state: 'PENDING',
          waits_for: 'nodes are busy',
          pending_reason: 'Resources',
          submitted_at_ms: 5,
          estimated_start_ms: 99,
        },
      ],
    });
    expect((await jobsOf(stage.gateway.admin_token)).map(({ name }) => name).sort()).toEqual([
      'both',
      'other',
    ]);
  });
});
