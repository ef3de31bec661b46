/** The corpus of the guide, as `examples/guide/corpus.py` reads it. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';

export interface Entry {
  id: string;
  file: string;
  questions: string[];
  /** Never trained. */
  held_out: string[];
  answer: string;
  /** Entries behind one of which the questions make sense; empty where they stand alone. */
  after: string[];
}

const folder = join(packageRoot, 'examples/guide/corpus');

export function readCorpus(): Entry[] {
  return readdirSync(folder)
    .sort()
    .flatMap((file) => readEntries(file, readFileSync(join(folder, file), 'utf8')));
}

function readEntries(file: string, text: string): Entry[] {
  const [, ...parts] = text.split(/^## /m);
  return parts.map((part) => {
    const [id = '', ...lines] = part.split('\n');
    const entry: Entry = { id, file, questions: [], held_out: [], answer: '', after: [] };
    const answer: string[] = [];
    for (const line of lines) {
      if (line === '' || line.startsWith('# ')) continue;
      if (line.startsWith('= ')) answer.push(line.slice(2));
      else if (line.startsWith('after: ')) entry.after = line.slice('after: '.length).split(', ');
      else if (line.startsWith('~ ')) entry.held_out.push(line.slice(2));
      else entry.questions.push(line);
    }
    entry.answer = answer.join('\n');
    return entry;
  });
}

/** Two questions with one normal form are the same question. */
export function normalForm(question: string): string {
  const bare = question
    .trim()
    .toLowerCase()
    .replace(/[?!.,]+$/, '')
    .trim();
  return bare === '' ? question.trim().toLowerCase() : bare;
}
