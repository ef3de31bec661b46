/** What is asked of a ledger that a gateway writes, and the words of its answer. */
import type { JobDimension, JobUsageAnswer } from '../../spec/job-usage.ts';
import type { UsageAnswer, UsageQuery, UsageRow, usageFormats } from '../../spec/usage.ts';
import { readJobRecords } from '../jobs/job-records.ts';
import { joinedUsageDimensions, joinJobs } from '../jobs/job-usage.ts';
import { jobUsageText, usageText } from '../usage-text.ts';

type Format = (typeof usageFormats)[number];

/** Who used what. */
export interface RequestsQuestion extends UsageQuery {
  of: 'requests';
  format: Format;
  /** By id. */
  key_names: ReadonlyMap<string, string>;
}

/** What was computed in jobs, beside what those had. */
export interface JobsQuestion {
  of: 'jobs';
  format: Format;
  group_by: readonly JobDimension[];
  since_ms?: number | undefined;
  until_ms?: number | undefined;
  jobs_folder: string;
}

export type UsageQuestion = RequestsQuestion | JobsQuestion;

/** What is to be summed up for it. */
export function queryOf(question: UsageQuestion): UsageQuery {
  if (question.of === 'requests') return question;
  const { since_ms, until_ms } = question;
  return { group_by: joinedUsageDimensions, since_ms, until_ms };
}

/** @param rows of its query */
export async function answerText(question: UsageQuestion, rows: readonly UsageRow[]): Promise<string> {
  return question.of === 'requests' ? requestsText(question, rows) : await jobsText(question, rows);
}

function requestsText(
  { group_by, since_ms, until_ms, format, key_names }: RequestsQuestion,
  rows: readonly UsageRow[],
): string {
  const usage = rows.map((row) => {
    const key_name = key_names.get(row.group.key ?? '');
    return key_name === undefined ? row : { ...row, key_name };
  });
  if (format !== 'json') return usageText(usage, group_by, format);
  return JSON.stringify({ group_by: [...group_by], since_ms, until_ms, usage } satisfies UsageAnswer);
}

async function jobsText(
  { group_by, since_ms, until_ms, format, jobs_folder }: JobsQuestion,
  rows: readonly UsageRow[],
): Promise<string> {
  const records = await readJobRecords([jobs_folder]);
  const jobs = joinJobs(rows, records, { group_by, since_ms, until_ms, now_ms: Date.now() });
  if (format !== 'json') return jobUsageText(jobs, group_by, format);
  return JSON.stringify({ group_by: [...group_by], since_ms, until_ms, jobs } satisfies JobUsageAnswer);
}
