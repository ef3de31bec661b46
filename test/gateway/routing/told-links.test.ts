/** Devices that tell of their links over the wire, rightly and wrongly: who answers, through a gateway as it runs. */
import { describe, expect, it } from 'vitest';
import type { ModelLoad } from '../../../spec/agent-state.ts';
import type { DeviceDescription } from '../../../spec/session-record.ts';
import { chatAnswer, json, shareStage, type TestSession, until } from '../support.ts';

const shared = shareStage();
const gb = 1e9;
const streamed = { arena_bytes: gb, resident_bytes: 0, step_bytes: 60 * gb, link_bytes_per_s_max: 400 * gb };

/** A slice on a node, that tells so of its link and of its model. */
async function slice(
  node: string,
  name: string,
  told: object,
  named: { link?: unknown } = { link: 'GPU-1' },
): Promise<TestSession> {
  const device = { kind: 'mig', model: 'GH200 480GB MIG 3g.48gb', memory_bytes: 5e10, isa: [], ...named };
  const session = await shared.session(json(chatAnswer), {
    name,
    node,
    metadata: { devices: [device as DeviceDescription] },
  });
  session.load = told as Partial<ModelLoad>;
  return session;
}

/** Who answers, of many requests that come one after the other. */
async function nodes(): Promise<string[]> {
  const seen = new Set<string>();
  for (let request = 0; request < 24; request++) {
    const answer = await shared.stage.post('/v1/chat/completions', {
      model: 'm',
      messages: [{ role: 'user', content: 'x' }],
    });
    await answer.text();
    seen.add(answer.headers.get('x-hpcserve-node') ?? `${answer.status}`);
  }
  return [...seen].sort();
}

interface Row {
  node: string;
  link?: { devices: number; reading: number; due_bytes_per_s: number; capacity_bytes_per_s?: number };
}

async function rows(): Promise<Row[]> {
  const { devices } = (await (await shared.stage.admin('/hpcserve/v1/devices')).json()) as { devices: Row[] };
  return devices;
}

/** The neighbour's heartbeat has come, and what was said in it counts. */
async function untilReading(reading: number): Promise<void> {
  await until(
    async () => (await rows()).some(({ link }) => link?.reading === reading),
    'a neighbour that reads',
  );
}

/** All have told what they tell now. */
async function untilTold(): Promise<void> {
  for (const session of shared.sessions) {
    const told = session.beats;
    await until(() => session.beats > told + 1, 'two heartbeats');
  }
}

describe('who answers for a model that two nodes stream', () => {
  it('is where no neighbour reads over the link, which is shown, too', async () => {
    await slice('n1', 'm', { streamed });
    await slice('n2', 'm', { streamed });
    await slice('n1', 'beside', { streamed, running: 2 });
    await untilReading(1);
    await untilTold();
    expect(await nodes()).toEqual(['n2']);
    const [own] = (await rows()).filter(({ node }) => node === 'n1');
    expect(own!.link).toMatchObject({ devices: 2, reading: 1 });
    expect(own!.link!.due_bytes_per_s).toBeCloseTo(240 * gb);
    const metrics = await (await shared.stage.admin('/metrics')).text();
    expect(metrics).toContain(
      'hpcserve_host_link_due_bytes_per_second{node="n1",link="GPU-1"} 240000000000\n',
    );
    expect(metrics).toContain(
      'hpcserve_host_link_capacity_bytes_per_second{node="n1",link="GPU-1"} 400000000000\n',
    );
    expect(metrics).toContain('hpcserve_host_link_readers{node="n2",link="GPU-1"} 0\n');
  });

  it.each<[string, object, { link?: unknown }?]>([
    ['tell nothing', {}],
    ['tell of a step that is less than nothing', { streamed: { ...streamed, step_bytes: -1 } }],
    ['tell of a step that is no number', { streamed: { ...streamed, step_bytes: '60e9' } }],
    ['tell of no step', { streamed: { ...streamed, step_bytes: undefined } }],
    ['tell of a rate of nothing', { streamed: { ...streamed, link_bytes_per_s_max: 0 } }],
    ['tell of a rate that is no number', { streamed: { ...streamed, link_bytes_per_s_max: 'all' } }],
    ['tell of weights that are no object', { streamed: 7 }],
    ['name a link that is no name', { streamed }, { link: 7 }],
    ['name a link that would act on terminals', { streamed }, { link: '\u001b[2J' }],
    ['name no link', { streamed }, {}],
  ])('is either, and both are there, where neighbours %s', async (_what, told, named) => {
    await slice('n1', 'm', { streamed });
    await slice('n2', 'm', { streamed });
    await slice('n1', 'beside', { ...told, running: 2 }, named);
    await untilTold();
    expect(await nodes()).toEqual(['n1', 'n2']);
    expect((await rows()).map(({ node }) => node).sort()).toEqual(['n1', 'n1', 'n2']);
  });

  it.each<[string, object]>([
    ['nothing', {}],
    ['what cannot be', { streamed: { ...streamed, step_bytes: -1 }, compute_ms: 'long' }],
  ])('is either where both tell %s, whoever reads beside them', async (_what, told) => {
    await slice('n1', 'm', told);
    await slice('n2', 'm', told);
    await slice('n1', 'beside', { streamed, running: 2 });
    await untilReading(1);
    await untilTold();
    expect(await nodes()).toEqual(['n1', 'n2']);
  });

  it('counts the time of steps only where it is one', async () => {
    for (const [compute_ms, expected] of [
      [200, ['n2']],
      [-200, ['n1', 'n2']],
      ['200', ['n1', 'n2']],
      [null, ['n1', 'n2']],
    ] as const) {
      const own = { streamed: { ...streamed, step_bytes: gb } };
      const [slow, fast] = [await slice('n1', 'm', { ...own, compute_ms }), await slice('n2', 'm', own)];
      await untilTold();
      expect(await nodes(), String(compute_ms)).toEqual(expected);
      for (const session of [slow, fast]) {
        await session.stop();
        shared.sessions.splice(shared.sessions.indexOf(session), 1);
      }
    }
  });
});
