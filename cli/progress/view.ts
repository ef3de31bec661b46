/** The one event stream, shown in three ways. */
import type { ProgressEvent } from '../../spec/events.ts';
import type { CliContext } from '../context.ts';
import { printable, style } from '../format/style.ts';
import { describeEvent } from './describe-event.ts';
import type { ProgressView } from './progress-view.ts';
import { TerminalView } from './terminal-view.ts';

/** The same for events of one of several sites, which each line names: JSON lines, or plain ones everywhere. */
export function siteProgressView(context: CliContext, site: string): ProgressView {
  const asked = context.configuration.get('progress');
  if (asked === 'json' || (asked === 'auto' && context.json)) return new JsonView(context, { site });
  return new PlainView(context, `${site}: `);
}

/**
 * By configuration (`progress`), else: JSON lines with --json, a live view on a terminal, plain lines elsewhere.
 * Asked for beside --json, a view for people goes to stderr, and stdout has the final object alone.
 */
export function progressView(context: CliContext): ProgressView {
  const asked = context.configuration.get('progress');
  if (asked === 'json' || (asked === 'auto' && context.json)) return new JsonView(context);
  if (asked === 'tty' || (asked === 'auto' && context.tty.stderr && context.environment.TERM !== 'dumb'))
    return new TerminalView(context, process.stderr);
  return new PlainView(context);
}

/** JSON lines are data: they go to stdout. */
class JsonView implements ProgressView {
  readonly #context: CliContext;
  readonly #about: { site?: string };

  /** @param about told with every event */
  constructor(context: CliContext, about: { site?: string } = {}) {
    this.#context = context;
    this.#about = about;
  }

  show(event: ProgressEvent): void {
    this.#context.out(JSON.stringify({ ...event, ...this.#about }));
  }

  close(): void {}
}

/** One line an event on stderr, with seconds since the start; loading is thinned to every tenth part. */
class PlainView implements ProgressView {
  readonly #context: CliContext;
  readonly #before: string;
  #started_ms: number | undefined;
  readonly #tenths = new Map<string, number>();

  /** @param before what every line begins with, behind the time */
  constructor(context: CliContext, before = '') {
    this.#context = context;
    this.#before = before;
  }

  show(event: ProgressEvent): void {
    this.#started_ms ??= event.at_ms;
    if (event.kind === 'loading' && !this.#isNewTenth(event)) return;
    const elapsed = ((event.at_ms - this.#started_ms) / 1000).toFixed(1).padStart(6);
    const text = printable(`${this.#before}${describeEvent(event)}`);
    const alarming = event.kind === 'failed' || (event.kind === 'warning' && event.severe === true);
    const shown = alarming ? style('red', text, this.#context.colour) : text;
    this.#context.note(`${elapsed}s  ${shown}`);
  }

  close(): void {}

  #isNewTenth(event: Extract<ProgressEvent, { kind: 'loading' }>): boolean {
    const key = `${event.node} ${event.model}`;
    const tenth = event.bytes_total > 0 ? Math.floor((10 * event.bytes_loaded) / event.bytes_total) : 0;
    if (this.#tenths.get(key) === tenth) return false;
    this.#tenths.set(key, tenth);
    return true;
  }
}
