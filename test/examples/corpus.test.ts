/** What the guide was taught: every question has one answer, and everything that answers name is there. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { commandHelp } from '../../.ci/command-page.ts';
import { packageRoot } from '../../host/package-root.ts';
import { type Entry, normalForm, readCorpus } from './corpus.ts';

const corpus = readCorpus();
const commands = await commandHelp();
const names = commands.map(({ name }) => name);
const scripts = Object.keys(
  (JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')) as { scripts: object }).scripts,
);
const pages = [
  'README.md',
  'bench/README.md',
  ...readdirSync(join(packageRoot, 'docs')).map((name) => `docs/${name}`),
]
  .map((name) => readFileSync(join(packageRoot, name), 'utf8'))
  .join('\n');

/** Stretches of code in an answer, lines of blocks among them. */
function spans({ answer }: Entry): string[] {
  const blocks = [...answer.matchAll(/^```\n(.*?)^```$/gms)].flatMap(([, text]) => text!.trim().split('\n'));
  const inline = answer.replaceAll(/^```\n.*?^```$/gms, '').matchAll(/`([^`]+)`/g);
  return [...blocks, ...[...inline].map(([, text]) => text!)];
}

/** Command lines of hpcserve in it, also behind another word of a shell. */
function commandLines(span: string): string[] {
  const lines = span.matchAll(/(?:^|[\s(])hpcserve (?:-- )?((?:[^|>)&"]|"[^"]*")+)/g);
  return [...lines].map(([, line]) => line!.trim());
}

/** What is wrong with a command line, by the help of the command. */
function wrongIn(line: string): string[] {
  const words = line.split(/\s+/);
  if (words[0]!.startsWith('--')) return ['--help', '--version'].includes(words[0]!) ? [] : [line];
  const full = [3, 2, 1]
    .map((count) => ['hpcserve', ...words.slice(0, count)].join(' '))
    .find((name) => names.includes(name));
  // The one group that is a command as well; its options stand in the help of what is below it.
  const helped = full ?? (words[0] === 'usage' ? 'hpcserve usage sql' : undefined);
  const help = commands.find(({ name }) => name === helped)?.help;
  if (help === undefined) return [line];
  const [own = ''] = line.split(/ -- /);
  const options = own.match(/(?<=\s)--?[a-z][\w-]*/g) ?? [];
  return options.filter((option) => !new RegExp(`(^|[\\s,])${option}(?![\\w-])`, 'm').test(help));
}

/** Names that stand for one's own, and a header that its page writes shorter. */
const examples = new Set(['template.jinja', 'login.example.org', 'x-hpcserve-precision']);
/** Words of Slurm and of shells, of which our pages need not say anything. */
const slurms =
  /^(#SBATCH|#!|s(batch|queue|cancel|run|alloc|info|acct|acctmgr|control|prio|share|contrl)\b|scontrol|module |--(time|mem|exclusive|nodes|ntasks|array|cpus|gpus|account)|\$SLURM|slurm-|ssh|nvidia-smi|afterany|OpenAI\()/;

describe('the corpus of the guide', () => {
  it('has answers to a few hundred questions, and phrasings that are not trained', () => {
    expect(corpus.length).toBeGreaterThan(280);
    for (const { id, questions, held_out, answer } of corpus) {
      expect(questions.length, id).toBeGreaterThanOrEqual(4);
      expect(held_out.length, id).toBeGreaterThanOrEqual(1);
      expect(answer, id).toMatch(/^\S[\s\S]{10,320}\S$/);
    }
    expect(new Set(corpus.map(({ id }) => id)).size).toBe(corpus.length);
  });

  it('has one answer to a question', () => {
    const answers = new Map<string, string>();
    const twice: string[] = [];
    for (const { id, questions, held_out, after } of corpus) {
      // What is asked behind something else has the answer of its place.
      if (after.length > 0) continue;
      for (const question of [...questions, ...held_out].map(normalForm)) {
        if (answers.has(question)) twice.push(`${question}: ${answers.get(question)}, ${id}`);
        answers.set(question, id);
      }
    }
    expect(twice).toEqual([]);
  });

  it('lets nothing follow a question that is not there, nor two answers the same one', () => {
    const ids = new Set(corpus.map(({ id }) => id));
    const known = new Map<string, string>();
    for (const { id, after, questions } of corpus) {
      for (const parent of after) {
        expect([...ids], id).toContain(parent);
        for (const question of questions) {
          const place = `${parent}: ${normalForm(question)}`;
          expect(known.get(place), place).toBeUndefined();
          known.set(place, id);
        }
      }
    }
  });

  it('names commands and options that there are', () => {
    const lines = corpus.flatMap((entry) => spans(entry).flatMap(commandLines));
    expect(lines.length).toBeGreaterThan(120);
    expect(lines.flatMap(wrongIn)).toEqual([]);
    // The judge itself sees what is wrong.
    expect(wrongIn('deploy model.yaml --nonsense')).toEqual(['--nonsense']);
    expect(wrongIn('dploy model.yaml')).toEqual(['dploy model.yaml']);
  });

  it('speaks of almost every command', () => {
    const said = corpus.flatMap((entry) => spans(entry).flatMap(commandLines)).join('\n');
    const unsaid = names.filter((name) => !said.includes(name.replace('hpcserve ', '')));
    expect(unsaid).toEqual([]);
  });

  it('names scripts of npm, pages and files that there are', () => {
    const words = corpus.flatMap(spans);
    const run = words.flatMap((text) => [...text.matchAll(/npm run ([\w-]+)/g)].map(([, name]) => name!));
    expect(run.length).toBeGreaterThan(5);
    expect(run.filter((name) => !scripts.includes(name))).toEqual([]);
    const files = words.filter((text) => /^(docs|examples|site-configs|bench)\/[\w./-]*$/.test(text));
    expect(files.length).toBeGreaterThan(25);
    expect(files.filter((file) => !existsSync(join(packageRoot, file)))).toEqual([]);
  });

  it('names keys, headers and options that the pages know', () => {
    const words = corpus
      .flatMap(spans)
      .filter((text) => !slurms.test(text) && commandLines(text).length === 0);
    const identifiers = words
      .flatMap((text) => text.match(/(?<![\w/.-])(--)?[A-Za-z][\w.-]*[\w](?=:|`|\s|$|\}|,|\))/g) ?? [])
      .filter((word) => /_|^--|^[a-z]+\.[a-z]+|^x-/.test(word));
    expect(identifiers.length).toBeGreaterThan(60);
    expect(
      [...new Set(identifiers)].filter(
        (word) => !examples.has(word) && !pages.includes(word.replace(/^--/, '')),
      ),
    ).toEqual([]);
  });
});
