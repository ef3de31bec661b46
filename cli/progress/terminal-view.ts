import type { WriteStream } from 'node:tty';
import type { ProgressEvent } from '../../spec/events.ts';
import type { CliContext } from '../context.ts';
import { printable, style } from '../format/style.ts';
import { describeEvent } from './describe-event.ts';
import type { ProgressView } from './progress-view.ts';

/** Least time between two redraws, ms. Lower: smoother; higher: less traffic over a slow ssh. */
const redrawInterval_ms = 100;

/**
 * The live view: finished things scroll up as lines, what still moves (waiting jobs, loading weights) is
 * redrawn below them in place.
 */
export class TerminalView implements ProgressView {
  readonly #context: CliContext;
  readonly #stream: Pick<WriteStream, 'write' | 'columns'>;
  /** What moves now, by job or by node and model. */
  readonly #live = new Map<string, string>();
  #drawnLines = 0;
  #lastDraw_ms = 0;

  constructor(context: CliContext, stream: Pick<WriteStream, 'write' | 'columns'>) {
    this.#context = context;
    this.#stream = stream;
  }

  show(event: ProgressEvent): void {
    switch (event.kind) {
      case 'checking':
        this.#setLive('checking', describeEvent(event), event.at_ms);
        return;
      case 'pending':
        this.#setLive(`job ${event.job_id}`, describeEvent(event), event.at_ms);
        return;
      case 'loading':
        this.#setLive(
          `load ${event.node} ${event.model}`,
          `${bar(event)} ${describeEvent(event)}`,
          event.at_ms,
        );
        return;
      case 'engine_phase':
        this.#setLive(`load ${event.node} ${event.model}`, describeEvent(event), event.at_ms);
        return;
      case 'running':
      case 'job_ended':
        this.#live.delete(`job ${event.job_id}`);
        break;
      case 'replica_serving':
        this.#live.delete(`load ${event.node} ${event.model}`);
        break;
      case 'failed':
      case 'serving':
      case 'stopped':
        this.#live.clear();
        break;
      case 'planned':
        this.#live.delete('checking');
        break;
    }
    this.#printAbove(`${this.#mark(event)} ${printable(describeEvent(event))}`);
  }

  close(): void {
    this.#live.clear();
    this.#draw('');
  }

  #setLive(key: string, text: string, at_ms: number): void {
    const isNew = !this.#live.has(key);
    this.#live.set(key, text);
    if (!isNew && at_ms - this.#lastDraw_ms < redrawInterval_ms) return;
    this.#lastDraw_ms = at_ms;
    this.#draw('');
  }

  #printAbove(text: string): void {
    this.#draw(`${text}\n`);
  }

  /** Erases the live lines, prints `above`, and draws them again: one write, so that nothing flickers. */
  #draw(above: string): void {
    const erase = this.#drawnLines > 0 ? `\u001b[${this.#drawnLines}A\u001b[J` : '';
    const width = Math.max(20, (this.#stream.columns ?? 100) - 1);
    const lines = [...this.#live.values()].map((text) => clip(`  ${printable(text)}`, width));
    this.#drawnLines = lines.length;
    this.#stream.write(
      erase + above + lines.map((line) => `${style('dim', line, this.#context.colour)}\n`).join(''),
    );
  }

  #mark(event: ProgressEvent): string {
    const { colour } = this.#context;
    const bad = event.kind === 'failed' || (event.kind === 'job_ended' && event.state !== 'COMPLETED');
    if (bad) return style('red', '✗', colour);
    if (event.kind === 'warning') return style('yellow', '!', colour);
    return style('green', '✓', colour);
  }
}

function bar(event: { bytes_loaded: number; bytes_total: number }): string {
  const cells = 20;
  const full = event.bytes_total > 0 ? Math.round((cells * event.bytes_loaded) / event.bytes_total) : 0;
  return `[${'█'.repeat(full)}${'·'.repeat(cells - full)}]`;
}

/** A live line must not wrap, or erasing would miss its second half. */
function clip(text: string, width: number): string {
  const characters = [...text];
  return characters.length > width ? `${characters.slice(0, width - 1).join('')}…` : text;
}
