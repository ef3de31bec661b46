import { isMembers, type Members } from '../dialects/chat-form.ts';
import type { BatchProblem } from './batch.ts';

/** OpenAI's bound. Lower: shorter batches; higher: more to keep in memory. */
const lines_max = 50_000;
/** Of those that are named; a file that is wrong is mostly wrong everywhere. */
const problems_max = 100;

export interface BatchLine {
  custom_id: string;
  body: Members;
}

/** The requests of a batch's file, one a line, or what is wrong with it. */
export function readBatchInput(content: Buffer, endpoint: string): BatchLine[] | BatchProblem[] {
  const lines: BatchLine[] = [];
  const problems: BatchProblem[] = [];
  const ids = new Set<string>();
  for (const [at, text] of content.toString().split('\n').entries()) {
    if (text.trim() === '') continue;
    const read = readLine(text, endpoint, ids);
    if (typeof read !== 'string') lines.push(read);
    else if (problems.length < problems_max)
      problems.push({ code: 'invalid_line', message: read, line: at + 1, param: null });
  }
  if (problems.length > 0) return problems;
  if (lines.length === 0 || lines.length > lines_max) {
    const message = `a batch has 1 to ${lines_max} requests, and this file has ${lines.length}`;
    return [{ code: 'invalid_file', message, line: null, param: null }];
  }
  return lines;
}

export function areProblems(read: BatchLine[] | BatchProblem[]): read is BatchProblem[] {
  return read.some((one) => 'code' in one);
}

/** @returns what is wrong, where something is */
function readLine(text: string, endpoint: string, ids: Set<string>): BatchLine | string {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return 'the line is no JSON';
  }
  if (!isMembers(value)) return 'the line is no JSON object';
  const { custom_id, method, url, body } = value;
  if (typeof custom_id !== 'string' || custom_id === '') return '`custom_id` must be a text';
  if (ids.has(custom_id)) return `the custom_id ${JSON.stringify(custom_id.slice(0, 64))} is there twice`;
  if (method !== 'POST') return '`method` must be POST';
  if (url !== endpoint) return `\`url\` must be ${endpoint}, as the batch says`;
  if (!isMembers(body)) return '`body` must be an object';
  if (body.stream === true) return '`body.stream` is for answers that somebody waits for';
  ids.add(custom_id);
  return { custom_id, body };
}
