import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Command, InvalidArgumentError } from 'commander';
import type { Operations } from '../../control/runner/operations.ts';
import { type LaunchLogFile, logFilesOf, tail } from '../../control/state/log-files.ts';
import { readableLine } from '../../control/state/readable-line.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { nearest } from '../../spec/nearest.ts';
import { gatewayFiles } from '../../spec/state-layout.ts';
import type { CliContext } from '../context.ts';
import { printable, style } from '../format/style.ts';
import { openSession } from '../site-session.ts';

interface LogOptions {
  follow?: true;
  node?: string;
  unit?: string;
  tail: number;
  gateway?: true;
  old?: true;
}

/**
 * Time between two looks at a followed file, ms. Network filesystems tell nobody of others' writes, so
 * files are looked at; lower: lines sooner, higher: less load on the metadata server.
 */
const follow_ms = 1_000;
/** Most bytes of one file printed in one look; the rest follows at the next. */
const chunk_bytes = 1024 * 1024;

export function registerLogs(command: Command, context: CliContext): void {
  command
    .option('-f, --follow', 'keep printing what is added; Ctrl-C ends')
    .option('--node <name>', 'only of this node')
    .option('--unit <name>', 'only of this replica (see status)')
    .option('-n, --tail <lines>', 'last lines of each file', parseCount, 40)
    .option('--gateway', 'the log of the gateway instead')
    .option('--old', 'also of jobs that were replaced')
    .addHelpText(
      'after',
      `
Examples:
  $ hpcserve logs my-deployment
  $ hpcserve logs my-deployment -f --node gh1
  $ hpcserve logs my-deployment --unit my-model-0 --tail 200
  $ hpcserve logs --gateway -f`,
    )
    .action(async (name: string | undefined, options: LogOptions) => {
      const operations = openSession(context, { command: 'hpcserve logs' });
      const offsets = new Map<string, number>();
      const files = (): LaunchLogFile[] => filesOf(operations, name, options);
      const first = files();
      if (first.length === 0) requireKnown(operations, name, options);
      if (first.length === 0 && !options.follow) {
        context.note('no logs yet: no job of it has started');
        return;
      }
      for (const file of first) {
        const { lines, offset } = tail(file.path, options.tail);
        offsets.set(file.path, offset);
        print(context, file, lines);
      }
      while (options.follow) {
        await sleep(follow_ms, undefined, { signal: context.signal });
        for (const file of files()) print(context, file, addedLines(file.path, offsets));
      }
    });
}

function filesOf(operations: Operations, name: string | undefined, options: LogOptions): LaunchLogFile[] {
  const { store } = operations;
  if (options.gateway)
    return [{ path: join(store.layout.gateway_folder, gatewayFiles.log), launch_id: '', kind: 'gateway' }];
  const only = name ?? onlyName(operations);
  const state = store.require(only);
  return state.launches
    .filter((launch) => options.old || !launch.superseded)
    .flatMap((launch) =>
      logFilesOf(
        store.launchFolder(only, launch.launch_id),
        launch.launch_id,
        launch.planned.units.map((unit) => unit.unit),
      ),
    )
    .filter((file) => options.node === undefined || file.node === options.node)
    .filter((file) => options.unit === undefined || file.unit === options.unit);
}

/** A node or replica that was never there has no logs, and never will. @throws E_LOGS_UNKNOWN */
function requireKnown(operations: Operations, name: string | undefined, options: LogOptions): void {
  const { node, unit, ...others } = options;
  if (options.gateway || (node === undefined && unit === undefined)) return;
  const only = name ?? onlyName(operations);
  const all = filesOf(operations, only, others);
  const units = operations.store
    .require(only)
    .launches.flatMap(({ planned }) => planned.units.map((each) => each.unit));
  const nodes = [...new Set(all.flatMap((file) => file.node ?? []))];
  const unknown = (typed: string, what: string, known: readonly string[]): HpcserveError => {
    const near = nearest(typed, known);
    return new HpcserveError('E_LOGS_UNKNOWN', {
      what: `${only} has no logs of ${what} ${typed}`,
      because: `there are ${known.join(', ')}`,
      try: near && `did you mean "${near}"?`,
    });
  };
  if (unit !== undefined && !units.includes(unit)) throw unknown(unit, 'a replica', [...new Set(units)]);
  // Before the first agent has said where it is, any node may come.
  if (node !== undefined && nodes.length > 0 && !nodes.includes(node)) throw unknown(node, 'a node', nodes);
}

function onlyName({ store }: Operations): string {
  const names = store.list();
  if (names.length === 1) return names[0]!;
  throw new HpcserveError('E_USAGE', {
    what: 'whose logs?',
    because: names.length === 0 ? 'there is no deployment' : `there are ${names.join(', ')}`,
    try: 'hpcserve logs NAME',
  });
}

/** Whole lines that were added since the last look; a line without its end waits for it, unless it fills a look. */
function addedLines(path: string, offsets: Map<string, number>): string[] {
  const offset = offsets.get(path) ?? 0;
  let descriptor: number;
  try {
    descriptor = openSync(path, 'r');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
  try {
    const { size } = fstatSync(descriptor);
    // A file that shrank was written anew.
    const start = size < offset ? 0 : offset;
    const bytes = Buffer.alloc(Math.min(size - start, chunk_bytes));
    const read = readSync(descriptor, bytes, 0, bytes.length, start);
    const added = bytes.subarray(0, read);
    const whole = added.lastIndexOf(0x0a) + 1;
    // A longer look would never come: what fills this one goes out as a line, and the rest of it as the next.
    const end = whole === 0 && read === chunk_bytes ? cutOf(added) : whole;
    offsets.set(path, start + end);
    if (end === 0) return [];
    return added
      .subarray(0, whole === 0 ? end : whole - 1)
      .toString('utf8')
      .split('\n');
  } finally {
    closeSync(descriptor);
  }
}

/** Where to cut a line that is too long: behind a state of a progress bar, else before a character that goes on. */
function cutOf(bytes: Buffer): number {
  const carriageReturn = bytes.lastIndexOf(0x0d) + 1;
  if (carriageReturn > 0) return carriageReturn;
  // The last character begins at one of the last four bytes, in UTF-8.
  let end = bytes.length - 1;
  while (end > bytes.length - 4 && (bytes[end]! & 0xc0) === 0x80) end--;
  return end;
}

function print(context: CliContext, file: LaunchLogFile, lines: readonly string[]): void {
  for (const line of lines) {
    if (context.json) context.out(JSON.stringify({ ...file, line }));
    else
      context.out(
        `${style('cyan', [file.kind, file.node, file.unit].filter(Boolean).join(' '), context.colour && context.tty.stdout)}  ${printable(readableLine(line))}`,
      );
  }
}

function parseCount(text: string): number {
  if (!/^\d+$/.test(text)) throw new InvalidArgumentError('a whole number of lines.');
  return Number(text);
}
