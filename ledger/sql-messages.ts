/** What is said between who asks SQL of ledgers and the process that runs it. */
import { z } from 'zod';
import { jobRecordSchema } from '../spec/job-record.ts';

export const sqlQuestionSchema = z.object({
  /** Files that can be read now. */
  ledgers: z.array(z.string()).min(1),
  /** What `jobs` has. */
  jobs: z.array(jobRecordSchema),
  sql: z.string(),
  rows_max: z.number().int().min(1),
});
export type SqlQuestion = z.infer<typeof sqlQuestionSchema>;

const cell = z.union([z.string(), z.number(), z.null()]);
export const sqlAnswerSchema = z.object({
  columns: z.array(z.string()),
  rows: z.array(z.array(cell)),
  /** There are more rows than were asked for. */
  cut: z.boolean(),
});
export type SqlAnswer = z.infer<typeof sqlAnswerSchema>;

/** Views that a question may name, which have the rows of all ledgers and their number in `ledger`, from 1. */
export const sqlViews = ['requests', 'usage_by_hour', 'sessions', 'gaps', 'audit'] as const;
