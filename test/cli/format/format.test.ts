import { describe, expect, it } from 'vitest';
import type { CliContext } from '../../../cli/context.ts';
import { formatBytes, formatDuration } from '../../../cli/format/quantities.ts';
import { printable, wantsColour } from '../../../cli/format/style.ts';
import { fittedTable, formatTable } from '../../../cli/format/table.ts';
import { parseSince } from '../../../cli/parse-since.ts';
import { TerminalView } from '../../../cli/progress/terminal-view.ts';
import { csvField, markdownField } from '../../../ledger/usage-text.ts';

it('writes numbers as people read them', () => {
  expect([0, 999, 1024, 1536, 637 * 1024 ** 2, 1000 * 1024 ** 2].map(formatBytes)).toEqual([
    '0 B',
    '999 B',
    '1.00 KiB',
    '1.50 KiB',
    '637 MiB',
    '0.98 GiB',
  ]);
  expect([0, 42_000, 185_000, 7_800_000, 86_400_000 * 4 + 3_600_000].map(formatDuration)).toEqual([
    '0 s',
    '42 s',
    '3 min 5 s',
    '2 h 10 min',
    '4 d 1 h',
  ]);
});

it('aligns tables by what is seen, not by escape sequences', () => {
  const rows = formatTable(
    [
      { title: 'A', styled: true },
      { title: 'N', align: 'right' },
    ],
    [
      ['\u001b[32mok\u001b[39m', '7'],
      ['long', '123'],
    ],
  );
  expect(rows).toEqual(['A       N', '\u001b[32mok\u001b[39m      7', 'long  123']);
});

it('makes control characters of others visible', () => {
  expect(printable('a\u001b[2Jb\rc\td\n')).toBe('a\\x1b[2Jb\\x0dc\td\n');
});

it('gives orders of others to no terminal, and no row of theirs to a table', () => {
  const name = 'evil\u001b]0;pwned\u0007\u001b[2J\r\nROOT 1\u009b31m\t\u202e';
  const rows = formatTable([{ title: 'MODEL' }, { title: 'N' }], [[name, '7']]);
  expect(rows).toEqual([
    expect.stringMatching(/^MODEL +N$/),
    'evil\\x1b]0;pwned\\x07\\x1b[2J\\x0d\\u000aROOT 1\\x9b31m\\u0009\\u202e  7',
  ]);
});

it('obeys NO_COLOR over everything', () => {
  expect(wantsColour({ NO_COLOR: '1', FORCE_COLOR: '1' }, true)).toBe(false);
  expect(wantsColour({ NO_COLOR: '' }, true)).toBe(true);
  expect(wantsColour({ TERM: 'dumb' }, true)).toBe(false);
  expect(wantsColour({ FORCE_COLOR: '1' }, false)).toBe(true);
});

it('writes CSV that neither breaks nor runs', () => {
  expect(markdownField('a|<b>\n`c`')).toBe('a&#124;&#60;b&#62; &#96;c&#96;');
  expect([csvField('a,"b"'), csvField('=1+1'), csvField(-5), csvField(undefined)]).toEqual([
    '"a,""b"""',
    "'=1+1",
    '-5',
    '',
  ]);
});

it('understands time spans and days', () => {
  const now = Date.UTC(2026, 0, 10);
  expect(parseSince('7d', now)).toBe(Date.UTC(2026, 0, 3));
  expect(parseSince('2026-01-01', now)).toBe(Date.UTC(2026, 0, 1));
  expect(() => parseSince('yesterday', now)).toThrow(/time span/);
});

it('redraws what moves below what is done, and never lets a live line wrap', () => {
  let screen = '';
  const view = new TerminalView({ colour: false } as CliContext, {
    columns: 40,
    write: (text: string) => {
      screen += text;
      return true;
    },
  });
  view.show({ at_ms: 0, kind: 'pending', job_id: '7', reason: 'Priority', explanation: 'x'.repeat(100) });
  expect(Math.max(...screen.split('\n').map((line) => line.length))).toBeLessThan(40);
  screen = '';
  view.show({ at_ms: 500, kind: 'running', job_id: '7', nodes: 'gh1' });
  // One line up, erased, and the finished line in its place; nothing is live any more.
  expect(screen).toBe('\u001b[1A\u001b[J✓ job 7 runs on gh1\n');
});

describe('a table on a terminal that is too narrow for it', () => {
  const columns = [{ title: 'NAME' }, { title: 'WHAT IT IS' }, { title: 'N' }];
  const rows = [
    ['first', 'words of some length that are folded', '1'],
    ['second', '', '2'],
  ];

  it('stands as lines of a title and a value, none of them longer', () => {
    const lines = fittedTable(columns, rows, 30);
    expect(lines).toEqual([
      'NAME        first',
      'WHAT IT IS  words of some',
      '            length that are',
      '            folded',
      'N           1',
      '',
      'NAME        second',
      'N           2',
    ]);
    expect(fittedTable(columns, rows, 100)).toEqual(formatTable(columns, rows));
  });
});
