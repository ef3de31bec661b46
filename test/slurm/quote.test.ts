import { execFileSync } from 'node:child_process';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { commentText, directiveLine, shellQuote, verbatimDirectiveLine } from '../../slurm/quote.ts';

const hostile = [
  "a'; touch /tmp/x",
  '$(id)',
  '`id`',
  'a\nb',
  '"',
  '\\',
  '!!',
  '~',
  '=x',
  'A=1',
  '',
  '-n',
  '模型 🚀',
  '\u2028',
];

/** What bash understands the words to be. */
function readBack(words: readonly string[]): string[] {
  const line = `printf '%s\\0' ${words.map(shellQuote).join(' ')}`;
  const output = execFileSync('bash', ['--norc', '-c', line], { encoding: 'utf8', env: { LANG: 'C.UTF-8' } });
  return output.split('\0').slice(0, -1);
}

describe('shellQuote', () => {
  test('bash reads hostile words back as they were', () => {
    expect(readBack(hostile)).toEqual(hostile);
  });

  test('bash reads any words back as they were', () => {
    const word = fc.string({ unit: 'grapheme', maxLength: 40 }).filter((text) => !text.includes('\0'));
    fc.assert(
      fc.property(fc.array(word, { minLength: 1, maxLength: 200 }), (words) => {
        expect(readBack(words)).toEqual(words);
      }),
      { numRuns: 30, seed: 7 },
    );
  });

  test('plain words stay readable', () => {
    expect(['/opt/a-b_c.d/e', '--x=1', 'gpu:a100:4', 'a@b'].map(shellQuote)).toEqual([
      '/opt/a-b_c.d/e',
      '--x=1',
      'gpu:a100:4',
      'a@b',
    ]);
  });

  test('a NUL character is refused', () => {
    expect(() => shellQuote('a\0b')).toThrowError(expect.objectContaining({ code: 'E_SLURM_SCRIPT' }));
  });
});

describe('directiveLine', () => {
  test('plain values stay bare, others are quoted the way sbatch reads them', () => {
    expect(directiveLine('partition', 'a,b')).toBe('#SBATCH --partition=a,b');
    expect(directiveLine('requeue')).toBe('#SBATCH --requeue');
    expect(directiveLine('comment', 'a "b" \\ # c')).toBe('#SBATCH --comment="a \\"b\\" \\\\ # c"');
  });

  test.each(['a\nb', 'a\rb', 'a\0b', '\u007f', ''])('%j is refused', (value) => {
    expect(() => directiveLine('comment', value)).toThrowError(
      expect.objectContaining({ code: 'E_SLURM_SCRIPT' }),
    );
  });

  test('a name that is none is refused', () => {
    expect(() => directiveLine('x\n#SBATCH --nodes', '9')).toThrowError();
    expect(() => directiveLine('--mem', '9')).toThrowError();
  });

  test('verbatim options must be one option on one line', () => {
    expect(verbatimDirectiveLine('--hint=nomultithread')).toBe('#SBATCH --hint=nomultithread');
    expect(verbatimDirectiveLine('-C gpu')).toBe('#SBATCH -C gpu');
    expect(() => verbatimDirectiveLine('rm -rf /')).toThrowError();
    expect(() => verbatimDirectiveLine('--mem=1\nrm -rf /')).toThrowError();
  });
});

test('comments stay on their line', () => {
  expect(commentText('a\nrm -rf /\r\u2028b')).toBe('a rm -rf /  b');
});
