import { statSync } from 'node:fs';
import { resolve } from 'node:path';
import { type Command, InvalidArgumentError } from 'commander';
import { resolveModelSource } from '../../control/model-source/resolve.ts';
import { readGgufParts } from '../../native/formats/gguf-split.ts';
import type { GgufValue } from '../../native/formats/gguf-values.ts';
import { readSafetensors } from '../../native/formats/safetensors.ts';
import type { CliContext } from '../context.ts';
import { summaryLines } from '../format/model-summary.ts';
import { formatBytes } from '../format/quantities.ts';
import { printable } from '../format/style.ts';
import { type Column, fittedTable } from '../format/table.ts';
import { textWidth } from '../format/wrap.ts';

interface InspectOptions {
  tensors?: boolean;
  metadata?: boolean;
  maxItems: number;
}

/** A tensor of either format. */
interface TensorRow {
  name: string;
  type: string;
  shape: readonly number[];
  offset_bytes: number;
  size_bytes: number;
}

export function registerModelInspect(model: Command, context: CliContext): void {
  model
    .command('inspect <path>')
    .description('Show what a GGUF file, a split of them, or a Hugging Face folder holds, from headers alone')
    .option('--tensors', 'list the tensors')
    .option('--metadata', 'list the keys of a GGUF file')
    .option('--max-items <n>', 'items shown of a long array', naturalNumber, 8)
    .addHelpText(
      'after',
      `
The file is checked as deploy checks it: whole, of known types, without contradictions (exit code 4 if not).

Examples:
  $ hpcserve model inspect model.gguf
  $ hpcserve model inspect model-00001-of-00003.gguf --tensors
  $ hpcserve model inspect /models/Llama-3.2-1B --json | jq .summary.kv_bytes_per_token`,
    )
    .action(async (path: string, options: InspectOptions) => {
      const resolved = await resolveModelSource(resolve(context.working_folder, path), {
        base_folder: context.working_folder,
        environment: context.environment,
      });
      const { summary, files, kind, fingerprint } = resolved;
      const isGguf = kind !== 'hf-folder';
      const tensors = options.tensors ? readTensors(files, isGguf) : undefined;
      const metadata = options.metadata && isGguf ? readMetadata(files[0]!, options.maxItems) : undefined;
      if (context.json) {
        const facts = { kind, path: resolved.path, files: [...files], fingerprint, summary };
        context.out(
          JSON.stringify({
            ...facts,
            ...(metadata ? { metadata: Object.fromEntries(metadata) } : {}),
            ...(tensors ? { tensors } : {}),
          }),
        );
        return;
      }
      for (const line of summaryLines(summary)) context.out(line);
      if (files.length > 1) {
        context.out('');
        for (const file of files)
          context.out(`${formatBytes(statSync(file).size).padStart(9)}  ${printable(file)}`);
      }
      if (options.metadata && !isGguf)
        context.note('safetensors folders have no metadata keys; see config.json');
      if (metadata) printMetadata(context, metadata);
      if (tensors) printTensors(context, tensors);
    });
}

function readTensors(files: readonly string[], isGguf: boolean): TensorRow[] {
  const rows: readonly TensorRow[] = isGguf
    ? readGgufParts(files[0]!, { keep_array_items: 0 }).flatMap((part) => part.tensors)
    : files.flatMap((file) => readSafetensors(file).tensors);
  return rows.map(({ name, type, shape, offset_bytes, size_bytes }) => ({
    name,
    type,
    shape,
    offset_bytes,
    size_bytes,
  }));
}

/** Values as JSON can hold them; long arrays end with how many more there are. */
function readMetadata(file: string, items_max: number): [string, unknown][] {
  const [first] = readGgufParts(file);
  return [...first!.metadata].map(([key, value]) => [key, plain(value, items_max)]);
}

function plain(value: GgufValue, items_max: number): unknown {
  if (value.type !== 'array') return typeof value.value === 'bigint' ? String(value.value) : value.value;
  const shown = (value.values ?? []).slice(0, items_max).map((item) => {
    if (typeof item === 'object') return plain(item, items_max);
    return typeof item === 'bigint' ? String(item) : item;
  });
  const more = value.length - shown.length;
  return more > 0 ? [...shown, `… ${more} more`] : shown;
}

function printMetadata(context: CliContext, metadata: readonly [string, unknown][]): void {
  const rows = metadata.map(([key, value]) => [printable(key), printable(JSON.stringify(value))]);
  context.out('');
  for (const line of fittedTable([{ title: 'KEY' }, { title: 'VALUE' }], rows, textWidth(context)))
    context.out(line);
}

const tensorColumns: readonly Column[] = [
  { title: 'TENSOR' },
  { title: 'TYPE' },
  { title: 'SHAPE' },
  { title: 'OFFSET', align: 'right' },
  { title: 'SIZE', align: 'right' },
];

function printTensors(context: CliContext, tensors: readonly TensorRow[]): void {
  const rows = tensors.map((tensor) => [
    printable(tensor.name),
    tensor.type,
    tensor.shape.join(' × '),
    String(tensor.offset_bytes),
    formatBytes(tensor.size_bytes),
  ]);
  context.out('');
  for (const line of fittedTable(tensorColumns, rows, textWidth(context))) context.out(line);
}

function naturalNumber(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value) || value < 0) throw new InvalidArgumentError('a whole number is needed');
  return value;
}
