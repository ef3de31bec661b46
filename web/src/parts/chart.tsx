import { useEffect, useRef } from 'preact/hooks';
import UPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { useStore } from '../state/store.ts';
import { isDark } from '../state/theme.ts';

export interface Series {
  label: string;
  /** Name of a custom property with its colour. */
  color: string;
  values: readonly (number | null)[];
  fill?: boolean;
}

export interface ChartProps {
  title: string;
  /** Behind the title, in a quiet colour. */
  unit: string;
  times_s: readonly number[];
  /** How far back the axis reaches, whatever was measured. */
  span_s: number;
  series: readonly Series[];
  format: (value: number) => string;
  /** Upper end of the axis where nothing is higher. */
  top?: number;
}

const height_px = 168;

/** One measure over time. What is seen is said in words below it, too: the newest value of each line. */
export function Chart({ title, unit, times_s, span_s, series, format, top = 1 }: ChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<UPlot | null>(null);
  const dark = useStore(isDark);
  const shape = series.map(({ label }) => label).join();
  useEffect(() => {
    const element = place.current!;
    const made = new UPlot(
      options({ element, series, format, top, span_s }),
      [[], ...series.map(() => [])],
      element,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: height_px }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, dark]);
  useEffect(() => {
    plot.current?.setData([times_s, ...series.map(({ values }) => values)] as UPlot.AlignedData);
  });
  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">{title}</span> <span class="unit">{unit}</span>
      </figcaption>
      <div ref={place} class="plot" aria-hidden="true" />
      <ul class="legend">
        {series.map(({ label, color, values }) => {
          const last = values.findLast((value) => value !== null);
          return (
            <li key={label}>
              <span class="swatch" style={{ background: `var(${color})` }} aria-hidden="true" />
              {label} <b>{last === undefined || last === null ? '–' : format(last)}</b>
            </li>
          );
        })}
      </ul>
    </figure>
  );
}

interface Shape extends Pick<ChartProps, 'series' | 'format' | 'span_s'> {
  element: HTMLElement;
  top: number;
}

function options({ element, series, format, top, span_s }: Shape): UPlot.Options {
  const style = getComputedStyle(element);
  const color = (name: string): string => resolved(element, name);
  const axis: UPlot.Axis = {
    stroke: color('--ink-3'),
    font: `11px ${style.fontFamily}`,
    grid: { stroke: color('--line-soft'), width: 1 },
    ticks: { show: false },
  };
  return {
    width: element.clientWidth,
    height: height_px,
    padding: [8, 26, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
    scales: {
      x: { range: (_, __, max) => [(max ?? Date.now() / 1000) - span_s, max ?? Date.now() / 1000] },
      y: { range: (_, __, max) => [0, Math.max(top, (max ?? 0) * 1.12)] },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 22, space: 76, values: (_, at) => at.map(clockOf) },
      { ...axis, size: 50, space: 34, values: (_, at) => at.map((value) => format(value)) },
    ],
    series: [
      {},
      ...series.map(({ label, color: name, fill }): UPlot.Series => {
        const line: UPlot.Series = {
          label,
          stroke: color(name),
          width: 1.6,
          spanGaps: true,
          points: { show: false },
        };
        if (fill) line.fill = color(name).replace('rgb(', 'rgba(').replace(')', ', 0.13)');
        return line;
      }),
    ],
  };
}

/** A canvas knows no custom properties. */
function resolved(element: HTMLElement, name: string): string {
  const probe = document.createElement('i');
  probe.style.color = `var(${name})`;
  element.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

const clock = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const clockOf = (at_s: number): string => clock.format(at_s * 1000);
