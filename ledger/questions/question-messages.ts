import type { ErrorJson } from '../../spec/errors/error.ts';
import type { SummedGroups } from '../usage.ts';
import type { UsageQuestion } from './question.ts';

/** What the thread that answers questions is given. */
export interface QuestionThreadData {
  ledger: string;
}

/** A question, with what was summed up for it where only the ledger's writer can read the ledger. */
export interface AskedQuestion {
  id: number;
  question: UsageQuestion;
  summed?: SummedGroups | undefined;
}

/** `end`: give up what is not answered, and end. */
export type ToQuestionThread = AskedQuestion | 'end';

/** UTF-8 of the answer, or why there is none. */
export type FromQuestionThread = { id: number } & ({ answer: Uint8Array } | { failure: ErrorJson });
