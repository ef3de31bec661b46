import { describe, expect, test } from 'vitest';
import { holdsTask, parseJobNumber, tasksIn, tellsOf } from '../../slurm/array-tasks.ts';
import { parseSacct, parseScontrolJob, parseSqueue } from '../../slurm/job-queue.ts';

describe('a line of an array', () => {
  test.each<[string | undefined, number, number[], number[]]>([
    ['3', 1, [3], [0, 2, 4, 33]],
    ['[4-7%2]', 4, [4, 5, 6, 7], [2, 3, 8]],
    ['4-7%2', 4, [4, 7], [3, 8]],
    ['[1,3,8-9]', 4, [1, 3, 8, 9], [0, 2, 5, 10]],
    ['[0-12:4,20]', 5, [0, 4, 12, 20], [1, 6, 13, 16]],
    [undefined, 1, [], [0, 1]],
  ])('%s stands for %i jobs', (array_task, count, held, others) => {
    const line = array_task === undefined ? {} : { array_task };
    expect(tasksIn(line)).toBe(count);
    for (const task of held) expect(holdsTask(line, task)).toBe(true);
    for (const task of others) expect(holdsTask(line, task)).toBe(false);
  });

  test('no number is none', () => {
    expect(parseJobNumber('12_34')).toEqual({ base: '12', task: 34 });
    for (const text of ['', 'x', '1_', '_1', '1_[2-3]', '1_2_3', '1 2', '-1'])
      expect(parseJobNumber(text), text).toBeUndefined();
  });
});

describe('tells of a task in the form of', () => {
  const squeue = (job: string, shown: string): string =>
    `${[job, shown, 'N/A', 'PENDING', 'None', '', '', 'j', 'ada', '(null)', '(null)', 'p', 'N/A', 'N/A', 'N/A', '1:00', '0', '0'].join('\u001f')}\u001e\n`;

  test('squeue: tasks that wait share a line, and the last one has the number of the array', () => {
    const [waiting, last] = parseSqueue(squeue('30', '30_[1-3]') + squeue('30', '30_7'));
    expect([1, 3, 7].map((task) => tellsOf(waiting!, `30_${task}`))).toEqual([true, true, false]);
    expect([1, 7].map((task) => tellsOf(last!, `30_${task}`))).toEqual([false, true]);
    expect([waiting, last].map((job) => tellsOf(job!, '30'))).toEqual([true, true]);
    expect(tellsOf(last!, '3')).toBe(false);
  });

  test('squeue: a job of its own is not a task', () => {
    const [job] = parseSqueue(squeue('30', '30'));
    expect([tellsOf(job!, '30'), tellsOf(job!, '30_0'), tellsOf(job!, 'local-30')]).toEqual([
      true,
      false,
      false,
    ]);
  });

  test('scontrol', () => {
    const words = 'JobName=j UserId=ada(1) JobState=PENDING Reason=None Partition=p TimeLimit=00:01:00';
    const waiting = parseScontrolJob(`JobId=30 ArrayJobId=30 ArrayTaskId=2-5%1 ${words}`);
    const split = parseScontrolJob(`JobId=34 ArrayJobId=30 ArrayTaskId=1 ${words}`);
    expect([tellsOf(waiting, '30_4'), tellsOf(waiting, '30_1')]).toEqual([true, false]);
    expect([tellsOf(split, '30_1'), tellsOf(split, '34'), tellsOf(split, '34_1')]).toEqual([
      true,
      true,
      false,
    ]);
  });

  test('sacct', () => {
    const rest = [
      'CANCELLED by 1',
      '0:15',
      'None',
      'p',
      'j',
      'ada',
      'a',
      'q',
      'n1',
      'Unknown',
      'Unknown',
      'Unknown',
      '1',
      '',
    ];
    const [job] = parseSacct(`${['31', '30_0', ...rest].join('\u001f')}\n`);
    expect([tellsOf(job!, '30_0'), tellsOf(job!, '30_1'), tellsOf(job!, '30')]).toEqual([true, false, true]);
  });
});
