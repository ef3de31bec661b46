/** Thread of a gateway that answers questions about its ledger, on connections of its own that only read. */
import { parentPort, workerData } from 'node:worker_threads';
import Database from 'better-sqlite3';
import { giveWay } from '../../host/niceness.ts';
import type { UsageQuery } from '../../spec/usage.ts';
import { ledgerError } from '../ledger-error.ts';
import { type SummedGroups, sumSteps, usageRows } from '../usage.ts';
import { inSlices } from './in-slices.ts';
import { answerText, queryOf } from './question.ts';
import type {
  AskedQuestion,
  FromQuestionThread,
  QuestionThreadData,
  ToQuestionThread,
} from './question-messages.ts';

/** Answers of models come first where cores are few. */
const niceness = 10;

const { ledger } = workerData as QuestionThreadData;
const port = parentPort!;
const ending = new AbortController();
giveWay(niceness);

port.on('message', (message: ToQuestionThread) => {
  if (message !== 'end') {
    void answer(message);
    return;
  }
  ending.abort();
  port.close();
});

async function answer({ id, question, summed }: AskedQuestion): Promise<void> {
  try {
    const query = queryOf(question);
    const rows = usageRows(summed ?? (await sum(query)), query.group_by);
    const bytes = new TextEncoder().encode(await answerText(question, rows));
    port.postMessage({ id, answer: bytes } satisfies FromQuestionThread, [bytes.buffer]);
  } catch (error) {
    port.postMessage({ id, failure: ledgerError(error, ledger).toJSON() } satisfies FromQuestionThread);
  }
}

/** In one transaction: what is written meanwhile is in no part of it. */
async function sum(query: UsageQuery): Promise<SummedGroups> {
  const db = new Database(ledger, { readonly: true, fileMustExist: true, timeout: 2000 });
  try {
    db.exec('BEGIN');
    return await inSlices(sumSteps(db, query), ending.signal);
  } finally {
    db.close();
  }
}
