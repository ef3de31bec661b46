import { expect, test } from 'vitest';
import type { Clock } from '../../slurm/clock.ts';
import { type JobNews, JobPoller } from '../../slurm/poller.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type JobInfo, type JobState, jobPhase } from '../../spec/slurm-types.ts';

/** Time that passes when told to. */
class ManualClock implements Clock {
  now = 0;
  readonly timers = new Set<{ at: number; action: () => void }>();
  now_ms(): number {
    return this.now;
  }
  after(delay_ms: number, action: () => void): () => void {
    const timer = { at: this.now + delay_ms, action };
    this.timers.add(timer);
    return () => this.timers.delete(timer);
  }
  /** Lets `duration_ms` pass; what timers start is awaited before the next one. */
  async pass(duration_ms: number): Promise<void> {
    const end = this.now + duration_ms;
    for (;;) {
      const [next] = [...this.timers].filter((timer) => timer.at <= end).sort((a, b) => a.at - b.at);
      if (next === undefined) break;
      this.timers.delete(next);
      this.now = next.at;
      next.action();
      for (let turn = 0; turn < 10; turn++) await Promise.resolve();
    }
    this.now = end;
  }
}

const info = (job_id: string, state: JobState): JobInfo => ({
  job_id,
  base_job_id: job_id,
  state,
  phase: jobPhase(state),
  name: 'j',
  user: 'ada',
  partition: 'p',
  node_list: '',
  nodes: [],
  start_is_estimate: false,
  source: 'squeue',
});

class FakeQueue {
  readonly asked: string[][] = [];
  states = new Map<string, JobState>();
  down = false;
  async jobs(ids: readonly string[]): Promise<JobInfo[]> {
    this.asked.push([...ids]);
    if (this.down) throw new HpcserveError('E_SLURM_UNREACHABLE', { what: 'down' });
    return ids.flatMap((id) => {
      const state = this.states.get(id);
      return state === undefined ? [] : [info(id, state)];
    });
  }
}

const short = (news: JobNews): string =>
  news.kind === 'changed' ? news.jobs.map((job) => job.state).join(',') : news.kind;

test('one question for all subscribers, changes only, an ended job is asked for no more', async () => {
  const [clock, queue] = [new ManualClock(), new FakeQueue()];
  queue.states = new Map([
    ['1', 'PENDING'],
    ['2', 'PENDING'],
  ]);
  const poller = new JobPoller(queue, { interval_ms: 30_000, clock });
  const heard: string[] = [];
  for (const id of ['1', '2', '1']) poller.subscribe(id, (news) => heard.push(`${id} ${short(news)}`));
  await clock.pass(0);
  expect(queue.asked).toEqual([['1', '2']]);
  expect(heard).toEqual(['1 PENDING', '2 PENDING', '1 PENDING']);
  await clock.pass(30_000);
  expect(queue.asked).toHaveLength(2);
  expect(heard).toHaveLength(3);
  queue.states = new Map([
    ['1', 'COMPLETED'],
    ['2', 'RUNNING'],
  ]);
  await clock.pass(30_000);
  expect(heard.slice(3)).toEqual(['1 COMPLETED', '2 RUNNING', '1 COMPLETED']);
  await clock.pass(30_000);
  expect(queue.asked.at(-1)).toEqual(['2']);
  queue.states.clear();
  await clock.pass(30_000);
  expect(heard.at(-1)).toBe('2 vanished');
  await clock.pass(300_000);
  expect(queue.asked).toHaveLength(5);
  expect(clock.timers.size).toBe(0);
});

test('an outage is told once, slows the polls down, and its end is told', async () => {
  const [clock, queue] = [new ManualClock(), new FakeQueue()];
  queue.states.set('1', 'RUNNING');
  queue.down = true;
  const poller = new JobPoller(queue, { interval_ms: 1000, clock });
  const heard: string[] = [];
  poller.subscribe('1', (news) => heard.push(short(news)));
  await clock.pass(60_000);
  expect(heard).toEqual(['unreachable']);
  // 1 at once, then after 2, 4, 8 s and every 10 s.
  expect(queue.asked).toHaveLength(8);
  queue.down = false;
  await clock.pass(10_000);
  expect(heard).toEqual(['unreachable', 'reachable', 'RUNNING']);
  poller.close();
  expect(clock.timers.size).toBe(0);
});

test('who has unsubscribed hears nothing, not even from the poll that runs', async () => {
  const [clock, queue] = [new ManualClock(), new FakeQueue()];
  queue.states.set('1', 'RUNNING');
  const poller = new JobPoller(queue, { interval_ms: 1000, clock });
  const heard: string[] = [];
  const stop = poller.subscribe('1', (news) => heard.push(short(news)));
  const running = poller.pollNow();
  expect(poller.pollNow()).toBe(running);
  stop();
  await running;
  expect(heard).toEqual([]);
  expect(clock.timers.size).toBe(0);
});
