/** Figures of a trace as SVG: bars and lines, which any browser shows. */
import type { ModelAnalysis, TraceAnalysis } from '../../ledger/index.ts';

const width = 800;
const height = 360;
const left = 220;
const bottom = 30;
const top = 40;
const colours = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9'];
/** Models in one figure: LLMFabric shows twenty as bars, and four as lines. */
const bars_max = 20;
const lines_max = 4;

interface Series {
  label: string;
  values: readonly (number | null)[];
}

/** Files by name. */
export function traceFigures({ models }: TraceAnalysis): Map<string, string> {
  const shown = models.slice(0, bars_max);
  const lined = models.slice(0, lines_max);
  const bursty = [...shown].sort((a, b) => b.burstiness - a.burstiness);
  const lines = (valuesOf: (model: ModelAnalysis) => readonly (number | null)[]): Series[] =>
    lined.map((model) => ({ label: model.model, values: valuesOf(model) }));
  return new Map([
    [
      '7-tokens.svg',
      bars(
        'Tokens by model',
        shown.map((m) => [m.model, m.input_tokens + m.output_tokens]),
      ),
    ],
    [
      '8-burstiness.svg',
      bars(
        'Peak of tokens a minute, over their mean',
        bursty.map((m) => [m.model, m.burstiness]),
      ),
    ],
    [
      '9-burstiness-by-hour.svg',
      plot(
        'Burstiness by hour since the first request',
        lines((m) => m.burstiness_by_hour),
      ),
    ],
    [
      '10-output-share.svg',
      plot(
        'Output tokens of all, by day',
        lines((m) => m.output_share_by_day),
      ),
    ],
    [
      '11-e2e.svg',
      bars(
        '95th percentile of the whole answer, s',
        shown.map((m) => [m.model, (m.e2e_ms?.p95 ?? 0) / 1000]),
      ),
    ],
    [
      '11-tpot.svg',
      bars(
        '95th percentile of the time per token, ms',
        shown.map((m) => [m.model, m.tpot_ms?.p95 ?? 0]),
      ),
    ],
    [
      '12-reuse.svg',
      plot(
        'Input tokens in known prefixes, by day',
        lines((m) => m.reused_share_by_day),
      ),
    ],
  ]);
}

function bars(title: string, rows: readonly (readonly [string, number])[]): string {
  const most = Math.max(1e-9, ...rows.map(([, value]) => value));
  const step = (height - top - bottom) / Math.max(1, rows.length);
  const shapes = rows.map(([label, value], index) => {
    const y = top + index * step;
    const length = ((width - left - 80) * value) / most;
    return [
      `<rect x="${left}" y="${y.toFixed(1)}" width="${length.toFixed(1)}" height="${(step * 0.8).toFixed(1)}" fill="${colours[0]}"/>`,
      text(left - 6, y + step * 0.6, label.slice(0, 32), 'end'),
      text(left + length + 4, y + step * 0.6, figure(value), 'start'),
    ].join('');
  });
  return svg(title, shapes);
}

function plot(title: string, series: readonly Series[]): string {
  const longest = Math.max(2, ...series.map(({ values }) => values.length));
  const most = Math.max(1e-9, ...series.flatMap(({ values }) => values.filter((value) => value !== null)));
  const x = (index: number): number => 60 + ((width - 80) * index) / (longest - 1);
  const y = (value: number): number => height - bottom - ((height - top - bottom - 20) * value) / most;
  const shapes = series.map(({ label, values }, at) => {
    const points = values.flatMap((value, index) =>
      value === null ? [] : [`${x(index).toFixed(1)},${y(value).toFixed(1)}`],
    );
    const colour = colours[at % colours.length]!;
    return `<polyline fill="none" stroke="${colour}" stroke-width="1.5" points="${points.join(' ')}"/>${text(60 + 180 * at, top, label.slice(0, 24), 'start', colour)}`;
  });
  shapes.push(text(52, y(most), figure(most), 'end'), text(52, y(0), '0', 'end'));
  return svg(title, shapes);
}

function svg(title: string, shapes: readonly string[]): string {
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="11">
<rect width="${width}" height="${height}" fill="white"/>
${text(width / 2, 18, title, 'middle')}
${shapes.join('\n')}
</svg>
`;
}

function text(x: number, y: number, words: string, anchor: string, fill = 'black'): string {
  const safe = words.replaceAll(
    /[<>&"\p{C}]/gu,
    (sign) => `&#${sign.codePointAt(0)! < 32 ? 0xfffd : sign.codePointAt(0)};`,
  );
  return `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" text-anchor="${anchor}" fill="${fill}">${safe}</text>`;
}

function figure(value: number): string {
  return value >= 1000 ? Math.round(value).toLocaleString('en') : value.toPrecision(3);
}
